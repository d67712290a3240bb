/* SPDX-License-Identifier: MIT
 * gpu.h - one Metal GPU for a test of kernels: buffers with contents, one dispatch at a time.
 *
 * Failures go through cmocka and name the kernel.
 */
#ifndef ISO_TESTS_METAL_KERNELS_GPU_H
#define ISO_TESTS_METAL_KERNELS_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "device/metal_gpu.h"

/* Opens the GPU with the program's kernels; once. Says whether it is emulated. */
void gpu_open(void);
void gpu_close(void);

/* Memory of the GPU that holds len bytes at an offset of lead bytes (a multiple of 4), and nothing behind them. */
struct gpu_buffer {
    uint32_t buffer;
    size_t lead, len;
    void *host; /* the bytes at lead */
};
struct gpu_buffer gpu_new(const void *from, size_t len, size_t lead); /* from NULL: zeros */
void gpu_free(struct gpu_buffer *b);

/* A kernel without function constants, named prefix then name. */
uint32_t gpu_kernel(const char *prefix, const char *name);

/* Runs one dispatch and waits. bind [n]. */
struct gpu_launch {
    uint32_t pipeline, groups[3], threads, bytes;
    const void *args;
    size_t args_len;
};
void gpu_run(const struct gpu_launch *l, const struct gpu_buffer *bind, size_t n);

#endif
