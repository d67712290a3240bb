/* SPDX-License-Identifier: MIT
 * check.h - what every kernel test needs: seeded numbers, guarded buffers, bit comparison, levels.
 *
 * A buffer has guard bytes on both sides, or ends (starts) at a page that may not be touched, so
 * that a kernel that reads or writes outside its contract is seen. Failures go through cmocka.
 */
#ifndef ISO_TESTS_KERNELS_CHECK_H
#define ISO_TESTS_KERNELS_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* xorshift64 (13, 7, 17); the state is never zero. */
struct check_rng {
    uint64_t state;
};

/* Seed of this run: CHECK_SEED from the environment, else the clock. Prints it once. */
uint64_t check_seed(void);

/* A generator for one test: the run's seed mixed with the test's own number. */
struct check_rng check_rng(uint64_t salt);

uint64_t check_next(struct check_rng *r);

/* Uniform integer in [lo, hi]. */
int64_t check_int(struct check_rng *r, int64_t lo, int64_t hi);

/* Uniform float in [-1, 1] with 24 random bits. */
float check_f32(struct check_rng *r);

/* n random bytes. */
void check_fill(struct check_rng *r, void *p, size_t n);

/* Where a buffer's forbidden neighbour lies. */
enum check_edge {
    CHECK_GUARDED, /* guard bytes on both sides; 64-byte aligned */
    CHECK_END,     /* the byte after the last one faults; alignment follows from len */
    CHECK_START,   /* the byte before the first one faults; page aligned */
};

/* len bytes of 0xA5. Aborts when there is no memory. Owner: caller, check_free(). */
void *check_alloc(size_t len, enum check_edge edge);

/* Verifies the guard bytes (fails the test if one changed, with its offset) and frees. */
void check_free(void *p);

/* Verifies the guard bytes of a live buffer; what names it in the message. */
void check_guards(const void *p, const char *what);

/* Fails the test, printing the first difference, unless got and want have the same bits.
 * got and want are [n_rows][n_cols] with their own row strides in elements. */
void check_bits_f32(const char *what, const float *got, size_t got_stride, const float *want,
                    size_t want_stride, size_t n_rows, size_t n_cols);

/* The same for bytes: prints offset and both values. */
void check_bytes(const char *what, const void *got, const void *want, size_t len);

/* Whole file as bytes in a CHECK_GUARDED buffer; fails the test when it cannot be read. A file named
 * .f32 holds little-endian floats, which come as this machine's. */
void *check_read_file(const char *path, size_t *len);

/* Name and flags of level i of this machine (lowest first): returns NULL when there are no more. */
const char *check_level(size_t i, unsigned *flags);

#endif
