/* SPDX-License-Identifier: MIT
 * metal_source.h - the kernels of the Metal device as one text inside the program.
 *
 * tools/flatten_metal.py makes the array when the program is built (METAL=1 or METAL=emulated): nothing
 * is read from disk at run time, and the text's digest is part of the device's identity.
 */
#ifndef ISO_DEVICE_METAL_SOURCE_H
#define ISO_DEVICE_METAL_SOURCE_H

#include <stddef.h>

extern const char iso_metal_source[];
extern const size_t iso_metal_source_len; /* bytes; there is no NUL behind them */

#endif
