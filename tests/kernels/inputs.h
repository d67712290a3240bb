/* SPDX-License-Identifier: MIT
 * inputs.h - inputs of the element-wise kernel tests: kinds of rows, golden tensors, model files.
 */
#ifndef ISO_TESTS_KERNELS_INPUTS_H
#define ISO_TESTS_KERNELS_INPUTS_H

#include <stdbool.h>
#include <stddef.h>

#include "format/gguf.h"
#include "kernels/check.h"

/* What a row holds. From INPUT_INF on the values leave the domain and an error must be reported. */
enum input_kind {
    INPUT_ORDINARY,  /* magnitudes around 1 */
    INPUT_OUTLIER,   /* one value a thousand times the others */
    INPUT_ZERO,      /* +0 and -0 */
    INPUT_TINY,      /* around the floors 2^-28 and 2^-60 */
    INPUT_SUBNORMAL, /* subnormal numbers only */
    INPUT_MIXED,     /* exponents from 2^-120 to 2^20 */
    INPUT_LARGE,     /* up to 2^55 */
    INPUT_TIES,      /* the largest is 2047/2048: many values lie between two codes */
    INPUT_INF,       /* ordinary with one infinity */
    INPUT_NAN,       /* ordinary with one NaN */
    INPUT_HUGE,      /* one value of 2^100 */
    INPUT_KINDS
};

const char *input_kind_name(enum input_kind kind);

/* Fills x [n]. */
void input_fill(struct check_rng *r, float *x, size_t n, enum input_kind kind);

/* Number of finite kinds: a loop "kind < INPUT_DOMAIN" stays inside the domain. */
#define INPUT_DOMAIN INPUT_INF

/* Raw golden tensor tests/golden/MODEL/raw/NAME.f32; *n is its number of floats. check_free(). */
float *input_golden(const char *model, const char *name, size_t *n);

/* Opens FILE of $ISOBIT_MODELS or ~/.cache/isobit/models; a missing one fails with advice. */
struct iso_gguf *input_model(const char *file);

/* The f32 tensor of that name as a copy [*n]; fails the test when it is not there. check_free(). */
float *input_weights(const struct iso_gguf *g, const char *name, size_t *n);

#endif
