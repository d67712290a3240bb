/* SPDX-License-Identifier: MIT
 * device.h - one accelerator behind one table: memory, a queue of operations, events, proof.
 *
 * A step is recorded, committed once and waited for once. On the CPU recording runs an operation at
 * once on the thread team; CUDA enqueues or captures; Metal encodes. All calls come from the engine's
 * scheduler thread unless a slot says otherwise.
 */
#ifndef ISO_DEVICE_H
#define ISO_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "kernels/shared/ops.h"

struct iso_device;
struct iso_queue; /* operations of one step; owned by the device */

/* Sizes that a device must be ready for; scratch is reserved from it at open. */
struct iso_device_limits {
    uint32_t max_rows;  /* rows of a step */
    uint32_t max_cols;  /* widest row of codes */
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t max_pages; /* per session */
};

/* Who touches a buffer. On a device that shares the host's memory all kinds are the same. */
enum iso_mem {
    ISO_MEM_DEVICE, /* operations only; host() is NULL where the device has memory of its own */
    ISO_MEM_HOST,   /* the host writes it between steps, operations read it: ids, descriptors, page
                       tables, rotary rows, output rows. What the host wrote is seen by every step
                       that begins later. */
    ISO_MEM_RESULT, /* the logits operation's rows: the host reads them after sync */
};

/* A piece of a copy from the device's memory to pinned host memory. */
struct iso_copy_part {
    void *dst;
    struct iso_span src;
    size_t len;
};

#define ISO_DEVICE_COPIES 1024u /* copies under way at once, of all threads */

struct iso_device_vt {
    const char *name;
    void (*close)(struct iso_device *dev);

    /* --- memory; blocking --------------------------------------------------------------------- */
    /* Reserves scratch for these limits; once. ISO_E_NOMEM. Returns its size. */
    enum iso_err (*reserve)(struct iso_device *dev, const struct iso_device_limits *limits,
                            uint64_t *scratch_bytes);
    /* Zeroed buffer. *buffer is its index, never 0. ISO_E_NOMEM names what. */
    enum iso_err (*alloc)(struct iso_device *dev, size_t len, enum iso_mem kind, const char *what,
                          uint32_t *buffer);
    void (*free)(struct iso_device *dev, uint32_t buffer);
    /* Makes mapped file bytes a read-only buffer: borrowed on the CPU, uploaded elsewhere. */
    enum iso_err (*map)(struct iso_device *dev, const void *p, size_t len, uint32_t *buffer);
    /* Readies a mapped matrix for products and embedding; once, before its first use. May move its
     * bytes to another order and another buffer: w->data and w->row_bytes then belong to the device
     * and mean nothing to the host. Copies of w made later share it. ISO_E_NOMEM, ISO_E_GPU. */
    enum iso_err (*weight)(struct iso_device *dev, struct iso_weight *w);
    enum iso_err (*upload)(struct iso_device *dev, struct iso_span dst, const void *src, size_t len);
    enum iso_err (*download)(struct iso_device *dev, void *dst, struct iso_span src, size_t len);
    /* In order with operations and transfers; need not have happened on return. What fails is
     * reported by the next sync, upload or download. */
    /* len bytes at each of at, at + stride, ... (n of them). */
    void (*zero)(struct iso_device *dev, struct iso_span at, size_t len, size_t stride, size_t n);
    void (*copy)(struct iso_device *dev, struct iso_span dst, struct iso_span src, size_t len);
    /* Host pointer to a buffer of kind HOST or RESULT (between steps), or to any other one where the
     * device shares the host's memory; else NULL. Any thread may read behind it. */
    void *(*host)(struct iso_device *dev, struct iso_span at);

    /* --- a step; begin and ops do not block on a GPU ------------------------------------------- */
    enum iso_err (*begin)(struct iso_device *dev, struct iso_queue **queue);
    void (*embed)(struct iso_queue *q, const struct iso_op_embed *op);
    void (*norm)(struct iso_queue *q, const struct iso_op_norm *op);
    void (*norm_quantize)(struct iso_queue *q, const struct iso_op_norm_quantize *op);
    void (*quantize)(struct iso_queue *q, const struct iso_op_quantize *op);
    void (*matmul)(struct iso_queue *q, const struct iso_op_matmul *op);
    void (*heads)(struct iso_queue *q, const struct iso_op_heads *op);
    void (*attention)(struct iso_queue *q, const struct iso_op_attention *op);
    void (*residual)(struct iso_queue *q, const struct iso_op_residual *op);
    void (*gather)(struct iso_queue *q, const struct iso_op_gather *op);
    void (*logits)(struct iso_queue *q, const struct iso_op_logits *op);
    /* Everything recorded so far is finished when it returns. ISO_E_NUMERIC names layer and tensor of
     * the first value outside the domain; ISO_E_TIMEOUT, ISO_E_GPU. */
    enum iso_err (*sync)(struct iso_queue *q);
    /* Ends the step, whether or not it was finished. */
    void (*end)(struct iso_queue *q);

    /* --- pages leave while a step runs ----------------------------------------------------------- */
    /* All of these slots or none: NULL where the device shares the host's memory, where sync and host()
     * say as much. Events and copies are numbers that grow, never 0; what came before is done too. */
    /* Launches what was recorded so far and marks the place behind it; waits for nothing. */
    enum iso_err (*event_record)(struct iso_queue *q, uint64_t *event);
    /* ISO_E_AGAIN when the event is not done after timeout_ns (0 only asks; raises no message);
     * ISO_E_GPU, ISO_E_TIMEOUT it hangs. Any thread. */
    enum iso_err (*event_wait)(struct iso_device *dev, uint64_t event, int64_t timeout_ns);
    /* Host memory that the copy engine reaches by itself (pinned). ISO_E_NOMEM. Any thread. */
    enum iso_err (*pin)(struct iso_device *dev, size_t len, const char *what, void **p);
    void (*unpin)(struct iso_device *dev, void *p);
    /* Copies parts[n] into pinned memory on the copy engine, beside the step, when the event is done
     * (0: now). Blocks on nothing. ISO_E_GPU. Any thread. */
    enum iso_err (*copy_start)(struct iso_device *dev, const struct iso_copy_part *parts, size_t n,
                               uint64_t event, uint64_t *copy);
    /* As event_wait. *took_ns: how long the copy engine worked on it. One caller per copy, and soon:
     * a device remembers only the last ISO_DEVICE_COPIES. */
    enum iso_err (*copy_wait)(struct iso_device *dev, uint64_t copy, int64_t timeout_ns, int64_t *took_ns);

    /* --- proof --------------------------------------------------------------------------------- */
    /* Runs embedded vectors through every operation; under 100 ms. ISO_E_SELF_CHECK names it. */
    enum iso_err (*self_check)(struct iso_device *dev);
    /* SHA-256 of the code that will run. */
    void (*identity)(struct iso_device *dev, struct iso_digest *out);
    /* Level or chip, for people. */
    const char *(*level)(const struct iso_device *dev);
    unsigned (*threads)(const struct iso_device *dev);
    /* Bytes that codes of n_rows rows of n values take. */
    size_t (*codes_bytes)(const struct iso_device *dev, size_t n_rows, size_t n);
    /* Runs fn on the device's host threads; for loading only. */
    void (*parallel)(struct iso_device *dev, void (*fn)(void *arg, unsigned thread, unsigned n),
                     void *arg);
};

struct iso_device {
    const struct iso_device_vt *vt; /* first member of every backend's own struct */
};

/* Opens the CPU: isa is a level name or "auto"; n_threads 0 takes the processors of this process.
 * Errors: ISO_E_ARG, ISO_E_UNSUPPORTED. Free with dev->vt->close(dev). */
enum iso_err iso_device_cpu_open(struct iso_device **out, const char *isa, unsigned n_threads) ISO_NODISCARD;

/* Opens a CUDA GPU: isa is "auto" (the fastest kernels that the chip has), "sm90" (wgmma) or "generic"
 * (mma.sync, sm_80 and later). The GPU is the first one that CUDA_VISIBLE_DEVICES leaves.
 * Errors: ISO_E_UNSUPPORTED this build has no CUDA, there is no driver or GPU, or no kernel for its
 * architecture (each by name); ISO_E_ARG isa; ISO_E_GPU, ISO_E_NOMEM. Free with dev->vt->close(dev). */
enum iso_err iso_device_cuda_open(struct iso_device **out, const char *isa) ISO_NODISCARD;

/* Opens an Apple GPU (or, built with METAL=emulated, a slow emulation of one for tests): isa is "auto",
 * which is "concurrent", or "serial": one dispatch at a time, to hunt for missing barriers.
 * Errors: ISO_E_UNSUPPORTED this build has no Metal, or there is no such GPU (by name); ISO_E_ARG isa;
 * ISO_E_GPU, ISO_E_NOMEM. Free with dev->vt->close(dev). */
enum iso_err iso_device_metal_open(struct iso_device **out, const char *isa) ISO_NODISCARD;

#endif
