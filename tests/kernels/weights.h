/* SPDX-License-Identifier: MIT
 * weights.h - weights and codes for tests of the products: random ones of every type, extreme ones, golden vectors.
 */
#ifndef ISO_TESTS_KERNELS_WEIGHTS_H
#define ISO_TESTS_KERNELS_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "format/types.h"
#include "kernels/check.h"
#include "kernels/shared/codes.h"

/* ORDINARY: as in models. ONES: every bit of a weight set, codes all +2047 or all -2047: the largest sums. ZEROS.
 * EXTREME: scales at the ends of what loading allows, codes of -2047, 0 and 2047. LOWEST: the most negative
 * integer that a type has, against codes all of one sign. */
enum weights_style { WEIGHTS_ORDINARY, WEIGHTS_ONES, WEIGHTS_ZEROS, WEIGHTS_EXTREME, WEIGHTS_LOWEST, WEIGHTS_STYLES };

/* n_values weights of type in file layout, finite scales below 2^100 (section 1). */
void weights_fill(uint8_t *data, enum iso_type type, size_t n_values, struct check_rng *r, enum weights_style style);

/* n_act rows of codes, their sums and scales; every element of c is written. Made straight, so that extremes are
 * reached that a quantiser never makes together. */
void weights_codes(const struct iso_codes *c, size_t n_act, struct check_rng *r, enum weights_style style);

/* n rounded up to what a row of the type may have: a multiple of 32 and of the type's block. */
size_t weights_cols(enum iso_type type, size_t n);

/* Row t of c from x [c->n]: the plain quantiser of section 3, written here so that a test needs no other kernel. */
void weights_quantise_row(const struct iso_codes *c, size_t t, const float *x);

/* The golden vector of type with that suffix, as check_read_file() returns it. */
void *weights_golden_file(enum iso_type type, const char *suffix, size_t *len);

#endif
