/* SPDX-License-Identifier: MIT
 * products.h - weight matrices of every type and their products, on the CPU and on a GPU. */
#ifndef ISO_TESTS_CUDA_PRODUCTS_H
#define ISO_TESTS_CUDA_PRODUCTS_H

#include "cuda/pair.h"
#include "format/types.h"

struct matrix {
    struct iso_weight w[2];
    uint8_t *bytes;
    size_t len; /* of the mapping */
};

/* A matrix of generated blocks on both devices; edge: with scales of zero, -0, subnormal, negative and large.
 * Exits with a message when a device refuses it. */
struct matrix make_matrix(struct pair *p, enum iso_type t, uint32_t n_rows, uint32_t n_cols, bool edge);
void free_matrix(struct pair *p, struct matrix *m);

/* Room for codes; each device's own layout. */
struct both make_codes(struct pair *p, size_t n_rows, size_t n);

/* Columns that a matrix of the type may have, at random. */
uint32_t pick_cols(struct pair *p, enum iso_type t);

/* Every type: random shapes and values, rounds of them. */
void test_products(struct pair *p, unsigned rounds);
/* Every type: the largest codes on both sides, sums that must not leave what an accumulator holds exactly. */
void test_extremes(struct pair *p);
/* The vectors of tests/golden/vectors: edge is "" or ".edge". */
void test_golden(struct pair *p, enum iso_type t, const char *edge);

#endif
