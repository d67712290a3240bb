/* SPDX-License-Identifier: MIT
 * device_metal_table.h - one table says which Metal kernel serves which operation, and how it is started.
 *
 * A kernel is specialised by function constants; each set of values is a pipeline. What a model needs is
 * made when the device opens and when it learns the head size, so that no step waits for a compiler.
 */
#ifndef ISO_DEVICE_METAL_TABLE_H
#define ISO_DEVICE_METAL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"
#include "device/metal_gpu.h"

#define ISO_METAL_VARIANTS 1024 /* most pipelines; a model needs about 120 */
#define ISO_METAL_CONSTANTS 8   /* most function constants of a kernel */
#define ISO_METAL_BIND_ALIGN 16 /* bytes: what every kernel accepts as the offset of a place */

enum iso_metal_kernel {
    ISO_METAL_EMBED, ISO_METAL_NORM, ISO_METAL_GATHER, ISO_METAL_NORM_QUANTIZE, ISO_METAL_QUANTIZE,
    ISO_METAL_MATMUL_VEC, ISO_METAL_MATMUL_TILE8, ISO_METAL_MATMUL_TILE32, ISO_METAL_HEADS,
    ISO_METAL_ATTENTION_SPLIT, ISO_METAL_ATTENTION_TILES, ISO_METAL_ATTENTION_MERGE, ISO_METAL_LOGITS,
    ISO_METAL_KERNEL_COUNT
};

/* A row of the table. */
struct iso_metal_rule {
    const char *op;       /* operation of the device */
    const char *function; /* in the Metal source; for_type: the type's name is appended */
    bool for_type;        /* one kernel for each tensor type */
    uint32_t rows_from, rows_to; /* rows of the step that it is chosen for */
    const char *when;     /* what else must hold, in words, or NULL */
    uint32_t threads;     /* of a threadgroup */
    uint32_t bytes;       /* of threadgroup memory, most */
    uint32_t align;       /* bytes: offsets of its places are multiples */
    uint32_t n_constants;
    struct iso_metal_rule_constant {
        uint8_t index;  /* in the Metal source */
        uint8_t limit;  /* values 0 .. limit-1; 2: a bool; 0: the head size */
    } constant[ISO_METAL_CONSTANTS];
};

extern const struct iso_metal_rule iso_metal_rules[ISO_METAL_KERNEL_COUNT];

/* The first kernel from..to whose rows_from..rows_to hold n_rows. */
enum iso_metal_kernel iso_metal_choose(enum iso_metal_kernel from, enum iso_metal_kernel to, uint32_t n_rows);

/* A row as one line of text, for logs. */
void iso_metal_rule_text(char *out, size_t len, enum iso_metal_kernel k);

/* A pipeline of a kernel: key packs the type or the values of the constants. */
struct iso_metal_variant {
    uint64_t key;
    uint32_t pipeline;
    uint32_t next; /* of the same kernel; 0 ends */
};

struct iso_metal_pipelines {
    struct iso_metal_gpu *gpu;
    uint32_t first[ISO_METAL_KERNEL_COUNT];
    struct iso_metal_variant variant[ISO_METAL_VARIANTS]; /* [0] is none */
    uint32_t n;
    uint32_t n_late; /* made while operations were recorded: none, when reserve() knew the model */
};

/* Makes the pipelines that do not depend on the head size.
 * Errors: ISO_E_GPU names the kernel: it does not compile, or the GPU has too few threads or too little
 *         threadgroup memory for it. */
enum iso_err iso_metal_pipelines_open(struct iso_metal_pipelines *p, struct iso_metal_gpu *gpu) ISO_NODISCARD;

/* Makes those of a head size that models use. The same errors; ISO_E_UNSUPPORTED for a size without kernels. */
enum iso_err iso_metal_pipelines_heads(struct iso_metal_pipelines *p, uint32_t head_dim) ISO_NODISCARD;

/* The pipeline of a kernel for values [n_constants] (for_type: values[0] is the type); made now if it is
 * not there. The same errors. */
enum iso_err iso_metal_pipelines_get(struct iso_metal_pipelines *p, enum iso_metal_kernel k, const uint32_t *values,
                                     uint32_t *pipeline) ISO_NODISCARD;

/* Bytes of attention states that steps within limits use: what the split form may need, up to a limit
 * beyond which tiles serve. */
size_t iso_metal_states_bytes(const struct iso_device_limits *limits);

#endif
