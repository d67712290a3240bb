/* SPDX-License-Identifier: MIT
 * fake_gpu.h - a seam (metal_gpu.h) that runs nothing and remembers every call, for tests of the host's side. */
#ifndef ISO_TESTS_METAL_HOST_FAKE_GPU_H
#define ISO_TESTS_METAL_HOST_FAKE_GPU_H

#include "device/metal_gpu.h"

#define FAKE_CALLS 256

struct fake_call {
    char function[64];  /* of a dispatch; "" for a barrier */
    uint32_t value[64]; /* of function constants, by index */
    struct iso_metal_binding bind[ISO_METAL_BINDINGS];
    uint32_t groups[3], group_threads, threadgroup_bytes;
    uint32_t named[ISO_METAL_BINDINGS]; /* by a barrier */
    size_t n; /* of bind or named */
};

struct fake_gpu {
    struct fake_call call[FAKE_CALLS]; /* since fake_forget() */
    size_t n_calls, n_commits, n_pipelines, n_wraps, n_open_buffers;
    const void *wrapped;
    size_t wrapped_len;
    /* What it shall do. */
    const char *refuse_function; /* a pipeline of this name does not compile */
    uint32_t width;              /* threads that a pipeline may have */
    enum iso_err commit;         /* what the next commit returns */
    const char *commit_text;
    uint32_t fault_place, fault; /* at the next commit: word written where the last dispatch binds place */
};

extern struct fake_gpu g_fake;

void fake_reset(void);
void fake_forget(void); /* calls and commits */
/* The i-th dispatch, barriers not counted, or NULL. */
const struct fake_call *fake_dispatch(size_t i);
size_t fake_n_dispatches(void);

#endif
