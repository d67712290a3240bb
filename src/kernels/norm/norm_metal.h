/* SPDX-License-Identifier: MIT
 * norm_metal.h - how a host starts RMS norm, residual addition and row moves on Metal; read by C and by Metal.
 *
 * Kernel "iso_norm" serves iso_op_norm and iso_op_residual (the bits are those of norm.h), "iso_gather"
 * iso_op_gather. Threadgroup memory: ISO_METAL_NORM_BYTES for iso_norm, none for iso_gather.
 *
 *   kernel       groups                                        threads
 *   iso_norm     {rows, 1, 1}                                  ISO_METAL_NORM_THREADS
 *   iso_gather   {ceil(n / ISO_METAL_GATHER_THREADS), 1, 1}    ISO_METAL_GATHER_THREADS
 *
 * Function constants of iso_norm, all three always set:
 *
 *   operation                 NORM    WEIGHT    ADD
 *   TO = norm(FROM)           true    given     false
 *   TO += FROM                false   false     true
 *   TO += norm(FROM)          true    given     true
 *
 * Function constants count through all operations of this folder: 0-7 are these, 8-15 quantize, 16-23 heads,
 * 24-31 attention. A place that the constants leave without use may hold any buffer or none.
 */
#ifndef ISO_KERNELS_NORM_METAL_H
#define ISO_KERNELS_NORM_METAL_H

#include "arith/lang.h"
#if !defined(__METAL_VERSION__)
#include <assert.h>
#include <stdint.h>
#endif

/* [[buffer(0)]] of iso_norm */
struct iso_metal_norm {
    uint32_t n; /* values of a row */
    float eps;
    float inv_n; /* f32(1/n) */
    uint32_t reserved;
};
static_assert(sizeof(struct iso_metal_norm) == 16, "shared with GPU code");

/* Places behind the argument structure, [[buffer(1 + i)]]; offsets are multiples of 4 bytes. */
enum iso_metal_norm_binding {
    ISO_METAL_NORM_TO,     /* f32 [rows][n], written, or read and written when adding */
    ISO_METAL_NORM_FROM,   /* f32 [rows][n], read; may be the same place */
    ISO_METAL_NORM_WEIGHT, /* f32 [n], read */
    ISO_METAL_NORM_BINDINGS
};

/* Function constants, by index. */
#define ISO_METAL_NORM_HAS_NORM 0   /* bool: FROM is normalised */
#define ISO_METAL_NORM_HAS_WEIGHT 1 /* bool: by WEIGHT; false without norm */
#define ISO_METAL_NORM_ADD 2        /* bool: the result is added to TO */

#define ISO_METAL_NORM_THREADS 256 /* the lanes of the pinned sum */
#define ISO_METAL_NORM_BYTES 1024  /* of [[threadgroup(0)]] */

/* [[buffer(0)]] of iso_gather: row index[i] of x moves to row i, index[i] >= i ascending. */
struct iso_metal_gather {
    uint32_t n;      /* words of a row */
    uint32_t n_rows; /* rows of index */
};
static_assert(sizeof(struct iso_metal_gather) == 8, "shared with GPU code");

enum iso_metal_gather_binding {
    ISO_METAL_GATHER_X,     /* 4-byte words [..][n], in place */
    ISO_METAL_GATHER_INDEX, /* u32 [n_rows], read */
    ISO_METAL_GATHER_BINDINGS
};

#define ISO_METAL_GATHER_THREADS 128

#endif
