/* SPDX-License-Identifier: MIT
 * diff_side.h - one side of `isobit diff`: a backend, a dump or a producer behind the same calls.
 *
 * Thread: all calls from one thread; a backend's own thread is inside.
 */
#ifndef ISO_CLI_DIFF_SIDE_H
#define ISO_CLI_DIFF_SIDE_H

#include "cli/diff.h"

struct iso_diff_side;

/* What a side is, without opening it: "HOST:PORT" ends with a number behind a colon, "cpu", "cuda" and
 * "metal" (with ":LEVEL" or alone) are backends, anything else is a dump's folder. */
enum iso_diff_kind { ISO_DIFF_BACKEND, ISO_DIFF_DUMP, ISO_DIFF_PRODUCER };
enum iso_diff_kind iso_diff_kind(const char *spec);

/* Opens side index (0: A, 1: B) of o. shape and o are borrowed until the close.
 * Errors: see iso_diff_run(). */
enum iso_err iso_diff_side_open(struct iso_diff_side **out, unsigned index,
                                const struct iso_diff_shape *shape,
                                const struct iso_diff_options *o) ISO_NODISCARD;
void iso_diff_side_close(struct iso_diff_side *s);

/* Begins the run; n_tensors: how many of the shape's tensors will be asked for (all, or all but the
 * logits). Only for backends and dumps. */
enum iso_err iso_diff_side_start(struct iso_diff_side *s, size_t n_tensors) ISO_NODISCARD;

/* Makes rows at .. at+n of tensor t readable; tensors in order within a chunk, chunks in order, every
 * one exactly once, each followed by iso_diff_side_release(). Errors: those of the run; ISO_E_IO. */
enum iso_err iso_diff_side_tensor(struct iso_diff_side *s, size_t t, size_t at, size_t n) ISO_NODISCARD;

/* Row i (0: the first of the tensor call) of width f32; i ascending. Valid until the next call. */
enum iso_err iso_diff_side_row(const float **out, struct iso_diff_side *s, size_t i) ISO_NODISCARD;
void iso_diff_side_release(struct iso_diff_side *s);

/* Instead of a walk: brings or computes the pages of positions 0 .. n-2, as a hand-off has them. */
enum iso_err iso_diff_side_handoff(struct iso_diff_side *s) ISO_NODISCARD;

/* After the last tensor or the hand-off: positions in the pages, and one page or NULL when this side
 * does not hold it. Valid until the next call. Errors: ISO_E_IO, ISO_E_FORMAT; those of the run's end. */
enum iso_err iso_diff_side_finish(struct iso_diff_side *s, uint32_t *n_positions) ISO_NODISCARD;
enum iso_err iso_diff_side_page(const uint8_t **out, struct iso_diff_side *s, uint32_t layer,
                                uint32_t head, uint32_t page) ISO_NODISCARD;

/* --- the parts behind it ------------------------------------------------------------------------ */

struct iso_diff_backend; /* diff_backend.c: an engine, its session and its thread */
enum iso_err iso_diff_backend_open(struct iso_diff_backend **out, unsigned index, bool producer,
                                   const struct iso_diff_shape *shape,
                                   const struct iso_diff_options *o) ISO_NODISCARD;
void iso_diff_backend_close(struct iso_diff_backend *b);
enum iso_err iso_diff_backend_start(struct iso_diff_backend *b, size_t n_tensors) ISO_NODISCARD;
enum iso_err iso_diff_backend_wait(struct iso_diff_backend *b, size_t t, size_t at, size_t n) ISO_NODISCARD;
const float *iso_diff_backend_row(const struct iso_diff_backend *b, size_t i);
void iso_diff_backend_release(struct iso_diff_backend *b);
enum iso_err iso_diff_backend_handoff(struct iso_diff_backend *b) ISO_NODISCARD;
enum iso_err iso_diff_backend_finish(struct iso_diff_backend *b) ISO_NODISCARD;
uint32_t iso_diff_backend_positions(const struct iso_diff_backend *b);
const uint8_t *iso_diff_backend_page(const struct iso_diff_backend *b, uint32_t layer, uint32_t head,
                                     uint32_t page);

struct iso_diff_dump; /* diff_dump.c: a folder, checked as a whole when it is opened */
enum iso_err iso_diff_dump_open(struct iso_diff_dump **out, const char *dir,
                                const struct iso_diff_shape *shape, size_t n) ISO_NODISCARD;
void iso_diff_dump_close(struct iso_diff_dump *d);
enum iso_err iso_diff_dump_tensor(struct iso_diff_dump *d, size_t t, size_t at) ISO_NODISCARD;
enum iso_err iso_diff_dump_row(const float **out, struct iso_diff_dump *d) ISO_NODISCARD;
enum iso_err iso_diff_dump_page(const uint8_t **out, struct iso_diff_dump *d, uint32_t layer,
                                uint32_t head, uint32_t page) ISO_NODISCARD;

#endif
