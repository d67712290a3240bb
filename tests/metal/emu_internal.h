/* SPDX-License-Identifier: MIT
 * emu_internal.h - the parts of the Metal emulator and what they know of each other.
 *
 * Part of an EMULATION of Metal on the CPU, for tests; nothing here runs on a GPU.
 *     metal_gpu_emulated.c  src/device/metal_gpu.h: buffers, recording, order of dispatches
 *     emu_module.c          Metal source -> a loaded module of kernels
 *     emu_fiber.c           changing stacks
 *     emu_group.c           one threadgroup: its lanes as fibers, barriers, SIMD operations
 *     emu_shadow.c          is this access inside of a buffer, and does it race with another
 * One thread makes all calls; one emulator works at a time.
 */
#ifndef EMU_INTERNAL_H
#define EMU_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

#include "base/err.h"
#include "device/metal_gpu.h"
#include "emu_abi.h"

#define EMU_LANES 1024            /* most of a threadgroup, as on Apple's GPUs */
#define EMU_GROUP_BYTES 32768     /* most threadgroup memory */
#define EMU_ARGS_BYTES 4096       /* most bytes of arguments */
#define EMU_MESSAGE_LEN 900       /* err.h keeps messages of about this length */

/* ---- memory: of the "GPU", so that base/mem's guard against allocation between two tokens does not count it;
 * without memory the process ends */

void *emu_alloc(size_t n, size_t size);
void *emu_realloc(void *p, size_t n, size_t size);

/* ---- randomness: one sequence per emulator, from ISO_METAL_SEED */

struct emu_random {
    uint64_t state;
};

uint64_t emu_random(struct emu_random *r);
uint32_t emu_random_below(struct emu_random *r, uint32_t n);
/* 0, 1, .., n - 1 in a random order. */
void emu_random_order(struct emu_random *r, uint32_t *list, uint32_t n);

/* ---- fibers */

struct emu_fiber {
#if defined(__x86_64__) || defined(__aarch64__)
    void *sp; /* where its registers lie while it waits */
#else
    ucontext_t context;
#endif
};

/* f will start run(), which never returns, on this stack when it is first switched to. */
void emu_fiber_prepare(struct emu_fiber *f, char *stack, size_t len, void (*run)(void));
/* Goes on at *to; returns when something switches to *from. */
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to);

/* ---- modules */

struct emu_loaded {
    void *handle; /* of dlopen */
    const struct emu_module *module;
    const char *lo, *hi; /* its segments in memory: constant data that kernels may read */
    char path[512];      /* of the library; the source stands beside it with .metal */
};

/* Compiles source, or takes the library that a run before has left, and loads it. checked: with a call per
 * access. Errors: ISO_E_GPU the compiler's first error; ISO_E_IO. */
enum iso_err emu_module_load(struct emu_loaded *m, const char *source, size_t len, bool checked) ISO_NODISCARD;
void emu_module_unload(struct emu_loaded *m);
/* "file:line: text" of an instruction, or of a line when pc is NULL. */
void emu_module_where(const struct emu_loaded *m, const void *pc, int line, char *out, size_t len);

/* ---- what a dispatch works on */

struct emu_cell;

struct emu_buffer {
    char *host; /* NULL: free */
    size_t len;
    bool wrapped;   /* the GPU only reads it; the memory is the caller's */
    uint32_t epoch; /* barriers recorded on it in this command buffer */
    struct emu_cell *cells; /* [len], mapped on the first checked access */
};

struct emu_bound {
    struct emu_buffer *buffer; /* NULL: unbound */
    uint32_t number;           /* as the host knows it */
    char *at;                  /* what the kernel gets */
    size_t len;                /* bytes from there to the buffer's end */
    uint32_t epoch;            /* the buffer's when this was recorded */
};

struct emu_pipeline {
    const struct emu_kernel *kernel;
    struct iso_metal_constant *constants;
    size_t n_constants;
};

struct emu_dispatch {
    const struct emu_pipeline *pipeline;
    struct emu_bound bound[ISO_METAL_BINDINGS + 1]; /* [1] is the first; [0] the arguments */
    size_t n_bound;                                 /* highest index in use, plus one */
    unsigned char *args;
    size_t args_len;
    uint32_t groups[3], group_threads, dynamic_bytes;
    uint32_t index; /* in the command buffer */
    uint32_t *order; /* [n_groups] */
    uint32_t n_groups, n_done;
};

/* ---- one threadgroup */

struct emu_runner;
struct emu_shadow;

struct emu_runner *emu_runner_new(struct emu_random *random, const struct emu_loaded *module);
void emu_runner_free(struct emu_runner *r);
const struct emu_abi *emu_runner_abi(void);
/* Runs group number g of d to its end. false: message() says why, and this runner may not be used again.
 * shadow NULL: nothing is checked but barriers. */
bool emu_runner_group(struct emu_runner *r, const struct emu_dispatch *d, uint32_t g, struct emu_shadow *shadow);
/* While on, a fault of a kernel (SIGSEGV) is its error. */
void emu_runner_catch(bool on);
const char *emu_runner_message(const struct emu_runner *r);

/* ---- checks */

/* A place where threadgroup variables or arguments lie. */
struct emu_block {
    const char *name;
    unsigned id;
    size_t at, len; /* in the arena */
};

#define EMU_BLOCKS 64

/* The lane that makes an access, as the shadow sees it. */
struct emu_access_at {
    unsigned lane;
    unsigned kind; /* enum emu_access */
    /* Barriers passed, per kind of memory: [0] device, [1] threadgroup. */
    uint32_t group_epoch[2], simd_epoch[2];
    const char *stack, *stack_end; /* of the lane */
    const char *arena, *arena_end; /* threadgroup memory */
    const struct emu_block *blocks;
    size_t n_blocks;
};

struct emu_shadow *emu_shadow_new(const struct emu_loaded *module);
void emu_shadow_free(struct emu_shadow *s);
void emu_shadow_begin(struct emu_shadow *s); /* a command buffer starts: all before is done */
/* The next accesses are of this group. dispatches: of the command buffer, by index. */
void emu_shadow_group(struct emu_shadow *s, struct emu_dispatch *const *dispatches, const struct emu_dispatch *d,
                      uint32_t g);
/* true when the access is right, else the reason is in message [len]. */
bool emu_shadow_access(struct emu_shadow *s, const struct emu_access_at *a, const void *p, size_t size,
                       char *message, size_t len);
/* The cells of a buffer that goes away. */
void emu_shadow_forget(struct emu_buffer *b);

#endif
