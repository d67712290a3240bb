/* SPDX-License-Identifier: MIT
 * types.h - the tensor types that a GGUF file may hold: numbers, names, block sizes, block layouts.
 *
 * Layouts are byte-exact (GGUF is little-endian); the arithmetic form of each type is in section 4
 * of the specification. Fields are read with the helpers of arith/ and base/buf.h, not by casting
 * foreign bytes, except in kernels for one instruction set, whose machines are little-endian.
 */
#ifndef ISO_FORMAT_TYPES_H
#define ISO_FORMAT_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* X(NAME, "name", number in GGUF, values per block, bytes per block) */
#define ISO_TYPE_MAP(X)                                                                            \
    X(F32, "F32", 0, 1, 4)                                                                         \
    X(F16, "F16", 1, 1, 2)                                                                         \
    X(Q4_0, "Q4_0", 2, 32, 18)                                                                     \
    X(Q4_1, "Q4_1", 3, 32, 20)                                                                     \
    X(Q5_0, "Q5_0", 6, 32, 22)                                                                     \
    X(Q5_1, "Q5_1", 7, 32, 24)                                                                     \
    X(Q8_0, "Q8_0", 8, 32, 34)                                                                     \
    X(Q4_K, "Q4_K", 12, 256, 144)                                                                  \
    X(Q5_K, "Q5_K", 13, 256, 176)                                                                  \
    X(Q6_K, "Q6_K", 14, 256, 210)                                                                  \
    X(IQ4_NL, "IQ4_NL", 20, 32, 18)                                                                \
    X(BF16, "BF16", 30, 1, 2)                                                                      \
    X(MXFP4, "MXFP4", 39, 32, 17)                                                                  \
    X(NVFP4, "NVFP4", 40, 64, 36)

enum iso_type {
#define X(id, name, number, values, bytes) ISO_TYPE_##id,
    ISO_TYPE_MAP(X)
#undef X
        ISO_TYPE_COUNT
};

struct iso_type_info {
    const char *name;
    uint32_t number;       /* in the file */
    uint32_t block_values; /* values per block */
    uint32_t block_bytes;
};

/* Never fails for a member of enum iso_type. */
const struct iso_type_info *iso_type_info(enum iso_type t);

/* The enum value for a number found in a file, or ISO_TYPE_COUNT when it is not supported. */
enum iso_type iso_type_from_number(uint32_t number);

/* Name of a number as the GGUF specification knows it ("IQ2_XS"), or NULL: for refusals by name. */
const char *iso_type_number_name(uint32_t number);

/* Bytes of one row of n values; n must be a multiple of block_values (asserted). */
size_t iso_type_row_bytes(enum iso_type t, size_t n);

#endif
