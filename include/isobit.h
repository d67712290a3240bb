/* SPDX-License-Identifier: MIT
 * isobit.h - public interface: an engine (one model on one device) and sessions (timelines).
 *
 * An engine is immutable once open and shared by all its sessions. A session is one timeline of
 * tokens and belongs to one thread at a time. A step runs any mixture of prompt rows and decode rows
 * of several sessions through the model; there is no other forward function. Results never depend on
 * how rows are grouped, on threads, on the instruction set or on what is cached.
 *
 *     iso_engine_open(&engine, &options);
 *     iso_session_new(&session, engine, 4096);
 *     iso_session_prefill(session, ids, n, NULL);
 *     while (...) { id = pick(iso_session_logits(session)); iso_session_decode(session, id); }
 */
#ifndef ISOBIT_H
#define ISOBIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"

typedef struct iso_engine iso_engine;
typedef struct iso_session iso_session;

/* Progress of a long operation. Return true to stop it: it then fails with ISO_E_CANCELLED. */
typedef bool iso_progress_fn(void *arg, uint64_t done, uint64_t total);

struct iso_progress {
    iso_progress_fn *fn;
    void *arg;
};

struct iso_engine_options {
    const char *model_path;
    const char *device;    /* "cpu", "cuda" or "metal"; NULL is cpu. Another one is never taken instead. */
    const char *isa;       /* "auto" or a level of the device; NULL is auto */
    unsigned n_threads;    /* 0: one per processor that this process may use */
    uint32_t n_ctx;        /* longest session in tokens; 0: the model's, at most 4,096 */
    uint32_t n_sessions;   /* sessions that may exist at once; 0 is 1 */
    uint32_t n_batch;      /* most rows of a step; 0 is 512, with cuda 2,048 at most */
    uint32_t n_outputs;    /* most rows of a step with logits; 0: one for each session */
    uint32_t n_checkpoints; /* that each session keeps, see iso_session_checkpoint(); at most 64 */
    bool keep_expired;     /* window layers keep every page (digests, audits, producers) */
    bool staging;          /* room for one more session's pages while a hand-off is received */
    bool no_tokenizer;     /* do not load the vocabulary: ids are all that is needed */
    bool tokenizer_optional; /* a file that says it has none opens too, for ids only */
    struct iso_progress progress;
};

/* What opening found and chose. Strings live as long as the engine. */
struct iso_engine_info {
    const char *architecture; /* "llama", ... */
    const char *name;         /* general.name or "" */
    const char *device;       /* "cpu", "cuda", "metal" */
    const char *isa;          /* level in use */
    const char *arithmetic;   /* "exact-1" */
    struct iso_digest kernels; /* fingerprint of the kernels that will run */
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    uint32_t n_ctx_train;     /* the model's context length */
    uint32_t n_ctx;           /* of a session here */
    uint32_t window;          /* sliding window, 0 for none */
    uint32_t n_window_layers;
    uint32_t n_batch, n_outputs, n_threads, n_sessions;
    uint64_t n_parameters;
    uint64_t weight_bytes;    /* mapped */
    uint64_t kv_bytes;        /* page pools, all sessions */
    uint64_t scratch_bytes;   /* activations, logits, thread scratch */
};

/* Opens a model: maps the file, checks every tensor, proves the kernels against embedded vectors,
 * reserves all memory.
 *
 * Owner:  *out is owned by the caller, free with iso_engine_close() after its sessions.
 * Thread: the engine may be used from any thread; steps are taken one at a time.
 * Errors: ISO_E_IO, ISO_E_FORMAT, ISO_E_UNSUPPORTED (family, type, tokenizer by name), ISO_E_NOMEM,
 *         ISO_E_SELF_CHECK, ISO_E_ARG. */
enum iso_err iso_engine_open(iso_engine **out, const struct iso_engine_options *options) ISO_NODISCARD;
void iso_engine_close(iso_engine *e);
const struct iso_engine_info *iso_engine_info(const iso_engine *e);

/* The same plan without reserving anything: for a memory plan before loading. */
enum iso_err iso_engine_plan(struct iso_engine_info *info, const struct iso_engine_options *options) ISO_NODISCARD;

/* --- text ------------------------------------------------------------------------------------- */

enum { ISO_TEXT_BOS = 1, ISO_TEXT_SPECIAL = 2 };

/* Appends the ids (i32, host order) of text to ids. flags: ISO_TEXT_BOS adds the start token as the
 * model says, ISO_TEXT_SPECIAL parses control tokens (never for untrusted content). */
enum iso_err iso_engine_tokenize(struct iso_buf *ids, const iso_engine *e, const char *text,
                                 size_t len, unsigned flags) ISO_NODISCARD;

/* Appends the bytes of one token; control tokens give nothing unless special. */
enum iso_err iso_engine_piece(struct iso_buf *out, const iso_engine *e, int32_t id, bool special) ISO_NODISCARD;

/* Does this id end an answer? */
bool iso_engine_is_end(const iso_engine *e, int32_t id);

/* --- sessions --------------------------------------------------------------------------------- */

/* n_ctx: longest timeline (0: the engine's); its pages are reserved now, so that an admitted
 * answer never runs out of memory.
 * Errors: ISO_E_LIMIT no session or no pages left (how many there are); ISO_E_ARG n_ctx. */
enum iso_err iso_session_new(iso_session **out, iso_engine *e, uint32_t n_ctx) ISO_NODISCARD;
void iso_session_free(iso_session *s);
iso_engine *iso_session_engine(const iso_session *s);

/* Tokens held, and the ids themselves. */
uint32_t iso_session_position(const iso_session *s);
const int32_t *iso_session_ids(const iso_session *s);

/* How many of ids [n] the session holds already: the length of the common start. */
uint32_t iso_session_common(const iso_session *s, const int32_t *ids, size_t n);
uint32_t iso_session_n_ctx(const iso_session *s);

/* Goes back to position p or, where window pages are gone, to the nearest earlier position that can
 * be continued; returns it. p beyond the current position changes nothing. */
uint32_t iso_session_rewind(iso_session *s, uint32_t p);

/* Keeps the way back to this position: a rewind reaches it, and places up to a page before it, even when
 * the window has moved on. Taken by itself at each hand-off. The newest n_checkpoints are kept; those
 * behind the target of a rewind are gone. Nothing where every page is kept anyway. */
void iso_session_checkpoint(iso_session *s);

/* Logits [n_vocab] behind the last row of this session that asked for them, or NULL. Valid until the
 * next step of the engine, whoever takes it: threads that share an engine hold one lock of their own
 * around a step and the reading of its logits. */
const float *iso_session_logits(const iso_session *s);

/* --- steps ------------------------------------------------------------------------------------ */

enum iso_output {
    ISO_OUTPUT_NONE,   /* the row ends after the last layer's k and v */
    ISO_OUTPUT_LOGITS, /* all logits */
};

/* One token of one session at the session's next position. Rows of a session are consecutive. */
struct iso_row {
    iso_session *session;
    int32_t token;
    enum iso_output output;
};

/* Runs rows through the model and appends their tokens to their sessions. On an error or
 * cancellation no session has changed in position, ids or visible pages; window pages that had
 * expired may be gone, so a rewind may reach less far.
 *
 * cancel: read between layers; may be NULL fn.
 * Errors: ISO_E_ARG more rows than n_batch, or with logits than n_outputs, unknown id (names row and id); ISO_E_CONTEXT a session
 *         is full (n, n_ctx); ISO_E_NUMERIC names layer and tensor; ISO_E_IO the file changed. */
enum iso_err iso_step(iso_engine *e, const struct iso_row *rows, size_t n_rows,
                      const struct iso_progress *cancel) ISO_NODISCARD;

/* Logits [n_vocab] of row i of the last step, NULL if it asked for none. */
const float *iso_step_logits(const iso_engine *e, size_t row);

/* Appends ids in chunks of at most n_batch rows; logits of the last one. progress counts tokens. On an
 * error the session keeps the chunks that were done. */
enum iso_err iso_session_prefill(iso_session *s, const int32_t *ids, size_t n,
                                 const struct iso_progress *progress) ISO_NODISCARD;

/* Appends one id and computes its logits. */
enum iso_err iso_session_decode(iso_session *s, int32_t id) ISO_NODISCARD;

/* SHA-256 of the logits of iso_session_logits() as f32 LE. */
void iso_logits_digest(struct iso_digest *out, const float *logits, size_t n);

#endif
