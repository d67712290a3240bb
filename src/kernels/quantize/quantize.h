/* SPDX-License-Identifier: MIT
 * quantize.h - the contract of the operations that make activation codes, one row at a time.
 *
 * Each returns the largest magnitude of what it quantised, as bits: ISO_BITS_2P100 or more is the
 * caller's error (the codes are then meaningless but defined). tap [n] or NULL receives the f32
 * values before quantisation. Variants are listed in quantize.def.
 * Source: the specification of exact-1, sections 3, 6 and 11.
 */
#ifndef ISO_KERNELS_QUANTIZE_H
#define ISO_KERNELS_QUANTIZE_H

#include <stddef.h>
#include <stdint.h>

/* Where one row's codes go (see kernels/shared/codes.h); the tail beyond n is zeroed. */
struct iso_code_row {
    int16_t *code;
    float *scale;
    int32_t *sum32;
};

enum iso_glu { ISO_GLU_SWIGLU, ISO_GLU_GEGLU };

/* x [n], n a multiple of 32. */
typedef uint32_t iso_quantize_fn(const struct iso_code_row *out, const float *x, size_t n);

/* RMS norm, weights w [n] or NULL, then codes. inv_n = f32(1/n). */
typedef uint32_t iso_norm_quantize_fn(const struct iso_code_row *out, float *tap, const float *x,
                                      const float *w, float eps, float inv_n, size_t n);

/* g(o * sigmoid(gate)), then codes. */
typedef uint32_t iso_gate_quantize_fn(const struct iso_code_row *out, float *tap, const float *o,
                                      const float *gate, size_t n);

/* SwiGLU or GeGLU of z and up, then codes. */
typedef uint32_t iso_glu_quantize_fn(const struct iso_code_row *out, float *tap, const float *z,
                                     const float *up, enum iso_glu kind, size_t n);

struct iso_quantize_kernels {
    const char *name;
    iso_quantize_fn *quantize;
    iso_norm_quantize_fn *norm_quantize;
    iso_gate_quantize_fn *gate_quantize;
    iso_glu_quantize_fn *glu_quantize;
};

const struct iso_quantize_kernels *iso_quantize_select(unsigned flags);

#endif
