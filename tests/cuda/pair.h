/* SPDX-License-Identifier: MIT
 * pair.h - the same operation on the CPU and on a GPU: buffers in both, outputs compared bit by bit. */
#ifndef ISO_TESTS_CUDA_PAIR_H
#define ISO_TESTS_CUDA_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

/* The CPU is device 0, the GPU device 1. */
struct pair {
    struct iso_device *dev[2];
    struct iso_queue *q[2];
    uint64_t seed;
    unsigned n_passed, n_failed;
    bool small; /* an emulated GPU: sizes that take seconds, not hours */
};

/* One buffer in each. */
struct both {
    struct iso_span s[2];
    size_t len;
};

#define PAIR_ROWS 512      /* most rows of a step */
#define PAIR_COLS 20480    /* widest row */

/* Opens both and reserves; exits with a message when the GPU is not there. name: a level of cuda, NULL for
 * its best one, "metal" or "metal:LEVEL". */
void pair_open(struct pair *p, const char *name);
void pair_close(struct pair *p);

uint64_t pair_next(struct pair *p);
/* About uniform in (-1, 1). */
float pair_unit(struct pair *p);
/* One of the n values that follow, at random. */
uint32_t pair_pick(struct pair *p, const uint32_t *values, size_t n);
#define PICK(p, ...) \
    pair_pick((p), (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* A buffer of len bytes; data may be NULL for one that both fill with the same garbage. */
struct both pair_buffer(struct pair *p, size_t len, enum iso_mem kind, const void *data);
/* n random floats times scale; now and then a large one. */
struct both pair_floats(struct pair *p, size_t n, float scale);
void pair_free(struct pair *p, struct both b);
/* A place behind the first offset bytes. */
struct both pair_at(struct both b, size_t offset);

/* begin on both; operations; sync. The result is the GPU's, both must be equal. */
void pair_begin(struct pair *p);
enum iso_err pair_sync(struct pair *p);

/* Are n bytes equal in both? Prints the first difference of what otherwise (as f32). */
bool pair_equal(struct pair *p, struct both b, size_t n, const char *what);

/* Counts a case and prints it when it failed. */
void pair_case(struct pair *p, bool good, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
