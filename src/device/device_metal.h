/* SPDX-License-Identifier: MIT
 * device_metal.h - what the files of the Metal device share.
 *
 * Plain C above metal_gpu.h: memory (device_metal.c), operations to dispatches (device_metal_queue.c),
 * which kernel serves what (device_metal_table.c), barriers (device_metal_hazard.c).
 */
#ifndef ISO_DEVICE_METAL_H
#define ISO_DEVICE_METAL_H

#include "device/device.h"
#include "device/fault.h"
#include "device/device_metal_hazard.h"
#include "device/device_metal_table.h"
#include "device/metal_gpu.h"

#define ISO_METAL_BUFFERS 16384 /* one per tensor of the largest model, and a few */
#define ISO_METAL_WAIT_MS 120000u /* a step that takes longer has hung: ISO_E_TIMEOUT */
/* Multiply-adds of one command buffer, a second or two of the slowest chip: the system aborts one that keeps
 * the display waiting for too long. Only prompts of large models are cut. */
#define ISO_METAL_WORK_MAX ((uint64_t)1 << 40)
#define ISO_METAL_MAP_FROM ((size_t)1 << 20) /* smaller tensors are copied: a wrapped one takes whole pages */

/* A buffer of the device. Everything is storage that host and GPU share. */
struct iso_metal_buffer {
    uint8_t *p;      /* first byte as the host sees it */
    size_t len;
    uint32_t gpu;    /* buffer of the seam; 0: not in use */
    uint64_t offset; /* of the first byte in it: mapped file bytes begin inside a page */
};

#define ISO_METAL_MOVED 8 /* buffers that one step gathers: more make attention take its general form */

struct iso_queue {
    struct iso_metal *dev;
    struct iso_metal_hazards hazards;
    bool recorded;                   /* something waits for a commit */
    uint64_t work;                   /* multiply-adds in it */
    bool adding;                     /* a residual is held back: the next operation may take it along */
    struct iso_op_residual residual;
    /* Attention is planned from the step's row descriptors before the GPU has moved them (gather). */
    uint32_t rows_buffer;            /* the descriptors of this step; 0: none seen yet */
    uint32_t n_rows;                 /* rows [n_rows] hold them as they will be; 0: the buffer itself does */
    struct iso_row_desc *rows;       /* [rows_cap], from reserve() */
    uint32_t rows_cap;
    uint32_t moved[ISO_METAL_MOVED]; /* other buffers that were gathered since the last commit */
    uint32_t n_moved;
};

struct iso_metal {
    struct iso_device dev;
    struct iso_metal_gpu *gpu;
    char level[32];
    bool serial;
    struct iso_metal_buffer buffer[ISO_METAL_BUFFERS];
    uint32_t n_buffers; /* highest index in use */
    struct iso_metal_pipelines pipelines;
    struct iso_queue queue;
    uint64_t work_max;         /* ISO_METAL_WORK_MAX; tests lower it */
    uint32_t fault;            /* buffer of one word */
    uint32_t states;           /* buffer of attention states, 0: none */
    struct iso_digest source;  /* of the kernels' text */
    enum iso_err err;          /* the first failure of the GPU; everything after it is refused with it */
    char detail[512];
};

/* Opens a device over the kernels' text. isa: NULL or "auto" is "concurrent", or "serial" (one dispatch at
 * a time, to tell a missing barrier from a wrong kernel).
 * Errors: ISO_E_ARG isa; what iso_metal_gpu_open() raises; ISO_E_GPU names the kernel that does not
 *         compile or has too few threads. Free with dev->vt->close(dev). */
enum iso_err iso_metal_open(struct iso_device **out, const char *isa, const char *source,
                            size_t len) ISO_NODISCARD;

/* The noted failure as an error of this thread, or ISO_OK. */
enum iso_err iso_metal_status(const struct iso_metal *d) ISO_NODISCARD;

/* A zeroed shared buffer. ISO_E_LIMIT, ISO_E_NOMEM name what. */
enum iso_err iso_metal_new_buffer(struct iso_metal *d, size_t len, const char *what, uint32_t *buffer) ISO_NODISCARD;

static inline uint8_t *iso_metal_at(const struct iso_metal *d, struct iso_span s)
{
    return s.buffer ? d->buffer[s.buffer].p + s.offset : NULL;
}

/* device_metal_queue.c */
void iso_metal_record_ops(struct iso_device_vt *vt); /* fills the operation slots */
enum iso_err iso_metal_begin(struct iso_device *dev, struct iso_queue **queue) ISO_NODISCARD;
enum iso_err iso_metal_sync(struct iso_queue *q) ISO_NODISCARD;
void iso_metal_end(struct iso_queue *q);
/* Commits what was recorded and waits; the device keeps a failure. */
enum iso_err iso_metal_flush(struct iso_queue *q) ISO_NODISCARD;

#endif
