/* SPDX-License-Identifier: MIT
 * quantize_metal.h - how a host starts the operations that make activation codes on Metal; read by C and Metal.
 *
 * "iso_norm_quantize" serves iso_op_norm_quantize, "iso_quantize" iso_op_quantize; the bits are those of
 * quantize.h, the layout that of kernels/shared/codes.h as three places.
 *
 *   kernel              groups                                          threads                        memory
 *   iso_norm_quantize   {rows, 1, 1}                                    ISO_METAL_QUANTIZE_THREADS     ISO_METAL_QUANTIZE_BYTES
 *   iso_quantize        {ceil(rows * stride / 256 / ISO_METAL_QUANTIZE_BLOCKS), 1, 1}   the same       none
 *
 * A residual addition in front of a norm of the same rows may join it: ADD makes iso_norm_quantize do
 * x += y (ADD_NORM: x += norm(y), by Y_WEIGHT with ADD_WEIGHT) first; then there is no INDEX.
 * All constants of a kernel are always set; a place that they leave without use may hold any buffer or none.
 */
#ifndef ISO_KERNELS_QUANTIZE_METAL_H
#define ISO_KERNELS_QUANTIZE_METAL_H

#include "arith/lang.h"
#if !defined(__METAL_VERSION__)
#include <assert.h>
#include <stdint.h>
#endif

/* [[buffer(0)]] of both kernels */
struct iso_metal_quantize {
    uint32_t n;          /* values of a row, a multiple of 32 */
    uint32_t stride;     /* codes of a row: n rounded up to 256; the tail gets zeros */
    uint32_t n_rows;
    uint32_t fault_code; /* noted when a magnitude is 2^100 or more */
    float eps;           /* of the norm in front; inv_n = f32(1/n) */
    float inv_n;
    float add_eps;       /* of the norm of y, with ADD_NORM */
    uint32_t reserved;
};
static_assert(sizeof(struct iso_metal_quantize) == 32, "shared with GPU code");

/* Places behind the argument structure, [[buffer(1 + i)]]. Offsets are multiples of 4 bytes, those of CODE, X,
 * OTHER and TAP of 16. The first six are those of both kernels. */
enum iso_metal_quantize_binding {
    ISO_METAL_QUANTIZE_CODE,  /* i16 [rows][stride], written */
    ISO_METAL_QUANTIZE_SCALE, /* f32 [rows][stride / 256], written */
    ISO_METAL_QUANTIZE_SUM32, /* i32 [rows][stride / 32], written */
    ISO_METAL_QUANTIZE_TAP,   /* f32 [rows][n], written: what is quantised */
    ISO_METAL_QUANTIZE_FAULT, /* the fault word of kernels/shared/metal_prim.h */
    ISO_METAL_QUANTIZE_X,     /* f32 [..][n], read; written with ADD */
    /* iso_quantize: */
    ISO_METAL_QUANTIZE_OTHER, /* f32 [rows][n], read: gate or up */
    ISO_METAL_QUANTIZE_BINDINGS,
    /* iso_norm_quantize: */
    ISO_METAL_NORM_QUANTIZE_WEIGHT = ISO_METAL_QUANTIZE_OTHER, /* f32 [n], read */
    ISO_METAL_NORM_QUANTIZE_INDEX,    /* u32 [rows], read: rows of X */
    ISO_METAL_NORM_QUANTIZE_Y,        /* f32 [rows][n], read */
    ISO_METAL_NORM_QUANTIZE_Y_WEIGHT, /* f32 [n], read */
    ISO_METAL_NORM_QUANTIZE_BINDINGS
};

/* Function constants, by index. TAP is of both kernels, FORM of iso_quantize, the rest of iso_norm_quantize. */
#define ISO_METAL_QUANTIZE_HAS_TAP 8
#define ISO_METAL_QUANTIZE_FORM 9 /* u32: one of the forms below */
#define ISO_METAL_QUANTIZE_HAS_WEIGHT 10
#define ISO_METAL_QUANTIZE_HAS_INDEX 11
#define ISO_METAL_QUANTIZE_ADD 12
#define ISO_METAL_QUANTIZE_ADD_NORM 13   /* false without ADD */
#define ISO_METAL_QUANTIZE_ADD_WEIGHT 14 /* false without ADD_NORM */

#define ISO_METAL_FORM_PLAIN 0  /* codes of x; as on the CPU there is no tap: HAS_TAP false */
#define ISO_METAL_FORM_GATE 1   /* of g(x*sigmoid(other)) */
#define ISO_METAL_FORM_SWIGLU 2 /* 2 + enum iso_glu */
#define ISO_METAL_FORM_GEGLU 3

#define ISO_METAL_QUANTIZE_THREADS 256 /* the lanes of the pinned sum */
#define ISO_METAL_QUANTIZE_BLOCKS 8    /* blocks of 256 values of a group of iso_quantize */
#define ISO_METAL_QUANTIZE_BYTES 1024  /* of [[threadgroup(0)]] */

#endif
