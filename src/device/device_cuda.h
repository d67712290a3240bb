/* SPDX-License-Identifier: MIT
 * device_cuda.h - what the files of the CUDA device share. C++ only.
 */
#ifndef ISO_DEVICE_CUDA_H
#define ISO_DEVICE_CUDA_H

#ifdef __cplusplus

#include <cuda_runtime.h>
#include <pthread.h>

extern "C" {
#include "base/mem.h"
#include "device/device.h"
#include "device/fault.h"
}
#include "kernels/matmul/matmul_cuda.h"

#define ISO_CUDA_BUFFERS 16384 /* one per tensor of the largest model, and a few */
#define ISO_CUDA_OPS 8192      /* operations recorded before they are launched: a step of 500 layers */
#define ISO_CUDA_GRAPHS 4      /* recorded steps that are kept as graphs */
#define ISO_CUDA_UPLOADS 16    /* host buffers that a step reads */
#define ISO_CUDA_WAIT_S 120    /* a step that takes longer has hung: ISO_E_TIMEOUT */

struct iso_cuda_buffer {
    uint8_t *p;         /* device memory */
    uint8_t *mirror;    /* pinned host memory: kinds HOST and RESULT; NULL otherwise */
    size_t len, mirror_len;
    enum iso_mem kind;
    uint32_t fresh_step; /* HOST: step in which [0, fresh_len) was uploaded */
    size_t fresh_len;
};

enum iso_cuda_op_kind {
    OP_EMBED, OP_NORM, OP_NORM_QUANTIZE, OP_QUANTIZE, OP_MATMUL, OP_HEADS, OP_ATTENTION, OP_RESIDUAL,
    OP_GATHER, OP_LOGITS
};

/* One recorded operation. plan: launch parameters that depend on what the host wrote for the step, so
 * that equal records mean equal launches. */
struct iso_cuda_op {
    uint32_t kind;
    uint32_t plan; /* attention: 0 tiles, else segments of the split form */
    union {
        struct iso_op_embed embed;
        struct iso_op_norm norm;
        struct iso_op_norm_quantize norm_quantize;
        struct iso_op_quantize quantize;
        struct iso_op_matmul matmul;
        struct iso_op_heads heads;
        struct iso_op_attention attention;
        struct iso_op_residual residual;
        struct iso_op_gather gather;
        struct iso_op_logits logits;
    };
};

/* Host bytes to bring to the device before the operations run. */
struct iso_cuda_upload {
    uint8_t *to;
    const uint8_t *from;
    uint32_t len; /* bytes, a multiple of 4 */
    uint32_t pad;
};

struct iso_cuda_uploads {
    struct iso_cuda_upload at[ISO_CUDA_UPLOADS];
    uint32_t n, pad;
};

/* A step as it was recorded, and its graph. */
struct iso_cuda_graph {
    struct iso_cuda_op *ops; /* [n_ops] */
    uint32_t n_ops;
    struct iso_cuda_uploads uploads;
    cudaGraphExec_t exec;
    uint64_t used; /* clock of the last use */
};

struct iso_queue {
    struct iso_cuda_device *dev;
    struct iso_cuda_op *ops; /* [ISO_CUDA_OPS] */
    uint32_t n_ops;
    struct iso_cuda_uploads uploads;
    uint32_t step;          /* counts begin() */
    bool launched;          /* something is on the stream since the last wait */
    struct iso_row_desc *rows; /* host copy of the step's descriptors, for launch parameters */
    uint32_t rows_buffer, n_rows, rows_cap;
};

#define ISO_CUDA_EVENTS 64u /* of steps; the engine runs at most 9 layers ahead of the oldest one */

/* What lets pages leave beside a step: a stream of copies and the events of both streams. Number n is in
 * place n modulo the length; events are made at their first use. */
struct iso_cuda_copies {
    pthread_mutex_t lock; /* all below */
    cudaStream_t stream;
    cudaEvent_t event[ISO_CUDA_EVENTS];
    int64_t event_ns[ISO_CUDA_EVENTS]; /* when it was recorded */
    uint64_t n_events;
    cudaEvent_t begin[ISO_DEVICE_COPIES], end[ISO_DEVICE_COPIES];
    int64_t copy_ns[ISO_DEVICE_COPIES];
    uint64_t n_copies;
};

struct iso_cuda_device {
    struct iso_device dev;
    int ordinal;
    cudaStream_t stream;
    char level[16], chip_name[256];
    struct iso_cuda_chip chip;
    struct iso_cuda_buffer buffer[ISO_CUDA_BUFFERS];
    uint32_t n_buffers; /* highest index in use */
    struct iso_queue queue;
    uint8_t *scratch; /* unpacked weights, attention states */
    size_t scratch_len;
    uint32_t *fault;      /* device word */
    uint32_t *fault_host; /* pinned copy, written at the end of each launch */
    enum iso_err err;     /* the first failure; everything after it is refused with it */
    char detail[512];
    struct iso_cuda_graph graph[ISO_CUDA_GRAPHS];
    struct iso_cuda_graph last; /* the step before, without a graph */
    uint64_t clock;
    uint64_t n_graph_launches;
    struct iso_cuda_copies copies;
};

static inline uint8_t *iso_cuda_at(const struct iso_cuda_device *d, struct iso_span s)
{
    return s.buffer ? d->buffer[s.buffer].p + s.offset : NULL;
}

/* Notes a failed call; the first one stays. Returns whether e is a success. */
bool iso_cuda_ok(struct iso_cuda_device *d, cudaError_t e, const char *file, int line, const char *what);
#define ISO_CUDA_OK(d, call) iso_cuda_ok((d), (call), __FILE__, __LINE__, #call)

/* The noted failure as an error of this thread, or ISO_OK. */
enum iso_err iso_cuda_status(struct iso_cuda_device *d);

/* Makes scratch at least len bytes; what it held is lost and graphs are dropped. False: noted. */
bool iso_cuda_scratch(struct iso_cuda_device *d, size_t len);

/* Makes a result buffer's mirror at least len bytes. False: noted. */
bool iso_cuda_mirror(struct iso_cuda_device *d, struct iso_cuda_buffer *b, size_t len);

/* device_queue_cuda.cu; graphs_drop is in device_graph_cuda.cu */
enum iso_err iso_cuda_begin(struct iso_device *dev, struct iso_queue **queue);
enum iso_err iso_cuda_sync(struct iso_queue *q);
void iso_cuda_end(struct iso_queue *q);
void iso_cuda_record_ops(struct iso_device_vt *vt); /* fills the operation slots */
void iso_cuda_graphs_drop(struct iso_cuda_device *d);
bool iso_cuda_queue_init(struct iso_cuda_device *d);
void iso_cuda_queue_deinit(struct iso_cuda_device *d);
/* Waits for everything on the stream. */
enum iso_err iso_cuda_wait(struct iso_cuda_device *d);

/* device_launch_cuda.cu: all kernels of the list onto the stream; and before that, never inside a capture,
 * memory that the list needs and that may have to grow. */
void iso_cuda_launch_all(struct iso_queue *q);
bool iso_cuda_ready_memory(struct iso_queue *q);

/* device_graph_cuda.cu: launches what was recorded. */
void iso_cuda_flush(struct iso_queue *q);

/* device_copy_cuda.cu */
enum iso_err iso_cuda_copies_init(struct iso_cuda_device *d);
void iso_cuda_copies_deinit(struct iso_cuda_device *d);
void iso_cuda_copy_slots(struct iso_device_vt *vt); /* fills the slots for pages that leave beside a step */

#endif

#endif
