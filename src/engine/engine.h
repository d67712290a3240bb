/* SPDX-License-Identifier: MIT
 * engine.h - what the files of the engine share, and the taps that tests and `digest` use. */
#ifndef ISO_ENGINE_H
#define ISO_ENGINE_H

#include <pthread.h>

#include "isobit.h"
#include "engine/pages.h"
#include "isobit_kv.h"
#include "model/kv_pool.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#define ISO_AUDIT_ROWS 8 /* positions that one audit step recomputes */
#define ISO_MAX_SESSIONS 1024
#define ISO_MAX_BATCH 4608 /* nine sessions with a chunk of 512 each */

/* Device buffers of a step, all f32 unless said otherwise. */
struct iso_step_buffers {
    struct iso_span ids;       /* i32 [n_batch] */
    struct iso_span rows;      /* struct iso_row_desc [n_batch] */
    struct iso_span out_index; /* u32 [n_batch]: rows that want logits */
    struct iso_span x;         /* [n_batch][n_embd] */
    struct iso_span codes;     /* widest row of codes, n_batch rows */
    struct iso_span q, gate;   /* [n_batch][heads*d] */
    struct iso_span k, v;      /* [n_batch][kv_heads*d] */
    struct iso_span q_codes, q_scales;
    struct iso_span attn;      /* [n_batch][heads*d] */
    struct iso_span proj;      /* [n_batch][n_embd] */
    struct iso_span ffn_gate, ffn_up; /* [n_batch][n_ff] */
    struct iso_span rope[2];   /* [n_batch][n_rot] per layer class */
    struct iso_span logits;    /* [n_outputs][n_vocab] */
    struct iso_span tap;       /* [n_batch][widest], none until a tap is set */
};

/* Called with each boundary tensor of a step, in order; layer is UINT32_MAX outside layers. */
typedef void iso_tap_fn(void *arg, uint32_t layer, const char *name, const float *data,
                        size_t n_rows, size_t width);

struct iso_engine {
    struct iso_engine_info info;
    struct iso_gguf *file;
    struct iso_device *dev;
    struct iso_model *model;
    struct iso_tokenizer *tokenizer; /* NULL when not loaded */
    struct iso_kv_layout layout;
    uint8_t layer_class[ISO_MAX_LAYERS];
    uint32_t layer_in_class[ISO_MAX_LAYERS];
    char *name;

    pthread_mutex_t lock; /* sessions, pools and steps: one at a time */
    struct iso_kv_pool pool[ISO_KV_CLASSES];
    uint32_t max_pages;   /* per session */
    uint32_t window_pages; /* most pages of a window layer that a session holds */
    bool keep_expired;
    uint32_t n_checkpoints, checkpoint_pages; /* per session; pages of each one's window, 0: none are needed */
    struct iso_span tables[ISO_KV_CLASSES]; /* u32 [n_sessions + ISO_AUDIT_ROWS][max_pages] */
    struct iso_session **sessions; /* [n_sessions] */
    struct iso_step_buffers b;
    struct iso_shadow shadow;
    uint32_t *logits_row;  /* [n_batch]: row of the last step -> row of b.logits, or UINT32_MAX */
    size_t n_step_rows;
    iso_tap_fn *tap;
    void *tap_arg;
    float *tap_host; /* widest tensor of a step; NULL on shared memory or without a tap */

    pthread_mutex_t identity_lock;
    bool has_identity;
    struct iso_identity identity;
};

/* Pages of window layers that a rewind to n finds although the session has given them back. checkpoint.c */
struct iso_checkpoint {
    uint32_t n;                    /* position */
    uint32_t first_page, end_page; /* held */
    uint32_t *slots;               /* [checkpoint_pages] */
};

struct iso_session {
    struct iso_engine *e;
    uint32_t index;       /* row of the page tables */
    uint32_t n, n_ctx;    /* tokens held, most tokens */
    int32_t *ids;         /* [n_ctx] */
    uint32_t reserved[ISO_KV_CLASSES]; /* pages promised for the longest timeline */
    uint32_t staged[ISO_KV_CLASSES];   /* slots in staging sets of this session */
    uint32_t extra[ISO_KV_CLASSES];    /* promised on top of reserved[] while they exist */
    uint32_t first_page[ISO_KV_CLASSES]; /* first page held */
    uint32_t end_page[ISO_KV_CLASSES];   /* one behind the last page held */
    uint32_t logits_row;  /* row of b.logits in the last step, or UINT32_MAX */
    uint32_t pending;     /* rows of the step being run */
    struct iso_checkpoint *checkpoint; /* [e->n_checkpoints] by position, NULL: none are kept */
    uint32_t n_checkpoints;            /* held */
    iso_kv_ready_fn *ready, *computed; /* see isobit_kv.h */
    void *ready_arg, *computed_arg;
};

/* A step as the forward routine sees it: rows already described in the device buffers. */
struct iso_forward {
    struct iso_engine *e;
    uint32_t n_rows, n_out;    /* n_out rows want logits, listed in out_index */
    const struct iso_progress *cancel;
    /* Called when each layer's k and v are written, on a device with a copy engine: when they will be
     * at e->shadow.ready. layer_computed: when they were seen to be. NULL: nobody listens. */
    void (*layer_done)(void *arg, uint32_t layer);
    void (*layer_computed)(void *arg, uint32_t layer);
    void *arg;
};

/* Runs the graph: embedding to logits. Errors as iso_step(). forward.c */
enum iso_err iso_forward_run(const struct iso_forward *f) ISO_NODISCARD;

/* Sets or removes (NULL) the tap; reserves its buffer. Not for a running step. */
enum iso_err iso_engine_set_tap(struct iso_engine *e, iso_tap_fn *fn, void *arg) ISO_NODISCARD;

/* Page table row of class c: u32 [max_pages], ISO_NO_SLOT where nothing is held. */
uint32_t *iso_engine_table(const struct iso_engine *e, uint32_t c, uint32_t index);

/* First position that a row at position p sees in class c. */
uint32_t iso_engine_first_visible(const struct iso_engine *e, uint32_t c, uint32_t p);

/* Makes sure that positions [s->n, s->n + n) have pages; takes new slots. ISO_E_LIMIT. */
enum iso_err iso_session_grow(struct iso_session *s, uint32_t n) ISO_NODISCARD;

/* Drops pages and slots of positions at n and beyond, zeroes the tail of the last page. */
void iso_session_cut(struct iso_session *s, uint32_t n);

/* Releases window pages that no position from s->n on can see, as far as the pending rows need room. */
void iso_session_expire(struct iso_session *s);

/* --- checkpoints: the engine's lock is held; checkpoint.c ------------------------------------- */

/* Most pages of a checkpoint of a window. */
uint32_t iso_checkpoint_pages(uint32_t window);

/* Promises a session the pages of its checkpoints; ISO_E_LIMIT. deinit gives all of it back. */
enum iso_err iso_checkpoints_init(struct iso_session *s) ISO_NODISCARD;
void iso_checkpoints_deinit(struct iso_session *s);

/* iso_session_checkpoint() under the lock. Allocates nothing. */
void iso_checkpoint_take(struct iso_session *s);

/* The session's window pages become those of the checkpoint that comes nearest to p from below.
 * Returns the position reached (the caller cuts there), 0 when none helps: nothing has changed. */
uint32_t iso_checkpoint_restore(struct iso_session *s, uint32_t p);

/* Drops the checkpoints behind position n: they belong to ids that are given up. */
void iso_checkpoints_drop(struct iso_session *s, uint32_t n);

#endif
