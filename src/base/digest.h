/* SPDX-License-Identifier: MIT
 * digest.h - SHA-256 and hexadecimal (a thin skin over OpenSSL). */
#ifndef ISO_BASE_DIGEST_H
#define ISO_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ISO_DIGEST_LEN 32                      /* bytes of SHA-256 */
#define ISO_DIGEST_HEX (2 * ISO_DIGEST_LEN + 1) /* characters with the NUL */

struct iso_digest {
    uint8_t bytes[ISO_DIGEST_LEN];
};

struct iso_hasher; /* running SHA-256; owned by one thread */

/* Returns owned, free with iso_hasher_free(). Aborts only if OpenSSL has no SHA-256 or memory. */
struct iso_hasher *iso_hasher_new(void);
void iso_hasher_free(struct iso_hasher *h);
void iso_hasher_update(struct iso_hasher *h, const void *p, size_t len);
/* Feeds n numbers of size bytes each, at most 8, as little-endian bytes on any machine. */
void iso_hasher_update_le(struct iso_hasher *h, const void *p, size_t n, size_t size);
/* Writes the digest and starts anew. Allocates nothing. */
void iso_hasher_final(struct iso_hasher *h, struct iso_digest *out);

/* One-shot SHA-256 of p [len]. */
void iso_sha256(struct iso_digest *out, const void *p, size_t len);

/* The same of x [n] as little-endian f32, on any machine. */
void iso_sha256_f32(struct iso_digest *out, const float *x, size_t n);

/* Lower-case hexadecimal, NUL-terminated. */
void iso_digest_hex(char out[ISO_DIGEST_HEX], const struct iso_digest *d);

/* Reads len bytes from 2*len hexadecimal digits; ISO_E_FORMAT otherwise. */
enum iso_err iso_hex_decode(uint8_t *out, size_t len, const char *hex) ISO_NODISCARD;

#endif
