/* SPDX-License-Identifier: MIT
 * metal_gpu.h - the few things that only Metal can do: the seam under the portable Metal device.
 *
 * device_metal*.c decides what runs, in which order and with which barriers; it is plain C, built and
 * tested everywhere. Behind this header stands metal_gpu_darwin.m on a Mac, and on any machine the
 * emulator of tests/metal. One thread, the engine's, makes all calls.
 */
#ifndef ISO_DEVICE_METAL_GPU_H
#define ISO_DEVICE_METAL_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct iso_metal_gpu;

struct iso_metal_info {
    char name[128];        /* the chip; an emulator says "emulated" in it */
    bool emulated;         /* not hardware */
    uint64_t memory;       /* bytes that may be in use at once; 0: not known */
    uint32_t group_threads; /* most threads of a threadgroup */
    uint32_t group_bytes;   /* most threadgroup memory */
};

/* A function constant, by index. */
struct iso_metal_constant {
    uint32_t index;
    enum iso_metal_constant_type { ISO_METAL_BOOL, ISO_METAL_U32 } type;
    uint32_t value;
};

/* A buffer argument of a dispatch. The kernel sees it as [[buffer(i)]], i its place in the list plus one:
 * [[buffer(0)]] is the argument structure. buffer 0 leaves the place unbound. */
struct iso_metal_binding {
    uint32_t buffer;
    uint64_t offset; /* bytes */
};

#define ISO_METAL_BINDINGS 24 /* most buffers of a dispatch, of Metal's 31 */

struct iso_metal_dispatch {
    uint32_t pipeline;
    const void *args; /* copied; at most 4 KiB */
    size_t args_len;
    const struct iso_metal_binding *bind;
    size_t n_bind;
    uint32_t groups[3];       /* threadgroups of the grid */
    uint32_t group_threads;   /* threads of each, one dimension, a multiple of 32 */
    uint32_t threadgroup_bytes; /* of [[threadgroup(0)]], 0: none; a multiple of 16 */
};

/* Opens the system's GPU and compiles source in safe math mode. serial: one dispatch at a time, for
 * hunting hazards; else dispatches run concurrently between barriers.
 * Errors: ISO_E_UNSUPPORTED there is none, by name; ISO_E_GPU the compiler's first message. */
enum iso_err iso_metal_gpu_open(struct iso_metal_gpu **out, const char *source, size_t len,
                                bool serial) ISO_NODISCARD;
void iso_metal_gpu_close(struct iso_metal_gpu *gpu);
const struct iso_metal_info *iso_metal_gpu_info(const struct iso_metal_gpu *gpu);

/* A kernel function specialised by constants [n]. *pipeline is its index, never 0. *width: threads that
 * a threadgroup may have for it. ISO_E_GPU names function and message. */
enum iso_err iso_metal_gpu_pipeline(struct iso_metal_gpu *gpu, const char *function,
                                    const struct iso_metal_constant *constants, size_t n,
                                    uint32_t *pipeline, uint32_t *width) ISO_NODISCARD;

/* Zeroed memory that host and GPU share. *host stays valid until freed. ISO_E_NOMEM. */
enum iso_err iso_metal_gpu_alloc(struct iso_metal_gpu *gpu, size_t len, uint32_t *buffer,
                                 void **host) ISO_NODISCARD;
/* The same over memory that the caller keeps: p and len are multiples of the system's page size. The GPU
 * only reads it. ISO_E_NOMEM, ISO_E_GPU. */
enum iso_err iso_metal_gpu_wrap(struct iso_metal_gpu *gpu, const void *p, size_t len,
                                uint32_t *buffer) ISO_NODISCARD;
void iso_metal_gpu_free(struct iso_metal_gpu *gpu, uint32_t buffer);

/* Records one dispatch; the first after a commit opens a command buffer and its encoder. A failure is
 * kept and returned by the next commit. */
void iso_metal_gpu_dispatch(struct iso_metal_gpu *gpu, const struct iso_metal_dispatch *d);
/* Later dispatches see what earlier ones wrote to buffers [n], and write there after they are done. */
void iso_metal_gpu_barrier(struct iso_metal_gpu *gpu, const uint32_t *buffers, size_t n);

/* Commits what was recorded and waits. Nothing recorded is fine.
 * Errors: ISO_E_TIMEOUT after limit_ms; ISO_E_GPU what the command buffer says; both are final: the
 *         device is lost. */
enum iso_err iso_metal_gpu_commit(struct iso_metal_gpu *gpu, uint32_t limit_ms) ISO_NODISCARD;

#endif
