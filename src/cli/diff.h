/* SPDX-License-Identifier: MIT
 * diff.h - the first difference of two runs: sides, result and report of `isobit diff`.
 *
 * Two sides are walked through the boundaries of the graph in its order: embd, per layer attn_norm to
 * l_out, result_norm, logits; then the KV pages. What a side is:
 *   backend    "cpu", "cpu:avx2", "cuda", ...: a run here, with every boundary, logits and page
 *   dump       a folder of `isobit digest --boundaries`: every boundary, pages of layers 0 and 1
 *   producer   "HOST:PORT": the pages that it sends for the prompt's positions 0 .. n-2
 *
 * Nothing is kept of a run but one number per tensor and one byte per position: two backends compute
 * in lock step, each on a thread of its own, and wait at each boundary until it has been compared; a
 * dump is read row by row.
 */
#ifndef ISO_CLI_DIFF_H
#define ISO_CLI_DIFF_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "cli/remote.h"

#define ISO_DIFF_DUMP_LAYERS 2 /* whose pages a dump holds */

/* One boundary tensor: [positions][width] f32. */
struct iso_diff_tensor {
    uint32_t layer; /* UINT32_MAX outside layers */
    const char *name;
    size_t width;
};

/* What a model's run consists of. */
struct iso_diff_shape {
    struct iso_diff_tensor *tensor; /* [n_tensors] in the order of the graph, logits last */
    size_t n_tensors;
    uint32_t n_layers, n_kv_heads, head_dim;
};

/* Reads the shape from a model file. Owner: iso_diff_shape_deinit().
 * Errors: those of opening a model file. */
enum iso_err iso_diff_shape_init(struct iso_diff_shape *shape, const char *model_path) ISO_NODISCARD;
void iso_diff_shape_deinit(struct iso_diff_shape *shape);

/* "03.attn_out", "logits", ... into out [48]; returns out. */
const char *iso_diff_tensor_name(char out[48], const struct iso_diff_tensor *t);

/* For tests of the ladder: may change rows [n_rows][width] of a backend's tensor, from position at on,
 * before they are shown. Called on the side's thread. */
typedef void iso_diff_poke_fn(void *arg, unsigned side, size_t tensor, size_t at, float *data,
                              size_t n_rows);

struct iso_diff_options {
    const char *spec[2];
    const char *model_path;
    const int32_t *ids; /* [n] */
    size_t n;
    uint32_t chunk;     /* positions per step of a backend */
    uint32_t threads;   /* of each backend; 0: one per processor */
    const char *isa;    /* level of a "cpu" that names none; NULL: auto */
    struct iso_remote_options remote; /* for a producer; its .producer is not read */
    iso_diff_poke_fn *poke; /* NULL outside tests */
    void *poke_arg;
};

/* How one tensor differs. */
struct iso_diff_stat {
    uint64_t n_different; /* elements; 0: the rest has no meaning */
    uint32_t first_position, last_position;
    uint32_t element;     /* first one of first_position */
    uint32_t bits[2];     /* its two values */
};

enum iso_diff_region { ISO_DIFF_K_HI, ISO_DIFF_K_LO, ISO_DIFF_V, ISO_DIFF_K_SCALE, ISO_DIFF_V_SCALE,
                       ISO_DIFF_REGIONS };

/* The first value of pages that differs: by layer, head, page, region, position, element. */
struct iso_diff_page {
    uint32_t layer, head, page;
    enum iso_diff_region region;
    uint32_t position; /* of the prompt, not of the page */
    uint32_t element;  /* 0 for scales */
    uint32_t bits[2];
};

struct iso_diff_result {
    bool has_tensors;            /* false with a producer: only pages were compared */
    size_t n_tensors;            /* compared: the first ones of the shape */
    struct iso_diff_stat *stat;  /* [shape's n_tensors], owned */
    uint8_t *position;           /* [n] 1: some tensor differs there; owned */
    size_t n;
    uint64_t n_pages, n_pages_different, n_values_different;
    struct iso_diff_page page;   /* when n_pages_different > 0 */
};

/* Compares the two sides. Whether they are equal is in the result, not in the error.
 * Owner:  *out, also after an error, by iso_diff_result_deinit().
 * Errors: ISO_E_ARG a side that is nothing; ISO_E_IO, ISO_E_FORMAT a dump that lacks a file, has one of
 *         another size or one that the model has no tensor for; those of a run and of a hand-off. */
enum iso_err iso_diff_run(struct iso_diff_result *out, const struct iso_diff_shape *shape,
                          const struct iso_diff_options *o) ISO_NODISCARD;
void iso_diff_result_deinit(struct iso_diff_result *r);
bool iso_diff_equal(const struct iso_diff_result *r);

/* Index of the first tensor that differs, n_tensors when there is none. */
size_t iso_diff_first(const struct iso_diff_result *r);

/* Distance of two f32 bit patterns in representable numbers, both zeros being one; -1 for a NaN. */
int64_t iso_diff_ulp(uint32_t a, uint32_t b);

/* Adds a page of both sides to the result: values of the first n_slots positions in it. diff_page.c */
void iso_diff_pages(struct iso_diff_result *r, const struct iso_diff_page *where, const uint8_t *a,
                    const uint8_t *b, uint32_t head_dim, uint32_t n_slots);

/* The result for people, on stdout, and as JSON (new reference). diff_report.c */
void iso_diff_print(const struct iso_diff_result *r, const struct iso_diff_shape *shape,
                    const struct iso_diff_options *o);
json_t *iso_diff_json(const struct iso_diff_result *r, const struct iso_diff_shape *shape,
                      const struct iso_diff_options *o);

#endif
