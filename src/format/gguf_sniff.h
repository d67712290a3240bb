/* SPDX-License-Identifier: MIT
 * gguf_sniff.h - tells what a file without the GGUF magic is, so that the refusal helps. */
#ifndef ISO_FORMAT_GGUF_SNIFF_H
#define ISO_FORMAT_GGUF_SNIFF_H

#include <stddef.h>
#include <stdint.h>

#define ISO_GGUF_SNIFF_LEN 320 /* characters of the longest answer, with the NUL */

/* Writes one clause: what data [size] seems to be and what to do about it, in printable ASCII. */
void iso_gguf_sniff(char out[ISO_GGUF_SNIFF_LEN], const uint8_t *data, size_t size);

#endif
