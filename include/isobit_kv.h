/* SPDX-License-Identifier: MIT
 * isobit_kv.h - public interface to KV pages: identity, export, staging, publish, audit, sources.
 *
 * What a hand-off, a pack store or an auditor needs. A page is the unit of arith/page.h. The engine
 * knows nothing of sockets; users of this header know nothing of kernels.
 */
#ifndef ISOBIT_KV_H
#define ISOBIT_KV_H

#include "isobit.h"

/* --- identity --------------------------------------------------------------------------------- */

/* What two engines must have in common before pages may move between them. */
struct iso_identity {
    const char *arithmetic;          /* "exact-1" */
    struct iso_digest weights;       /* every tensor's name, type, shape and bytes; hyper-parameters */
    struct iso_digest tokenizer;     /* zeros when the engine has none */
    struct iso_digest chat_template; /* zeros when the model has none */
    struct iso_digest page_format;   /* page layout, classes, heads, head size */
    struct iso_digest context;       /* context policy: window, positions, limits */
};

/* Computed on first use (the weights digest reads the whole file; it is cached beside the user's
 * other caches by inode, size and mtime). progress counts bytes.
 * Errors: ISO_E_IO; ISO_E_CANCELLED. Thread: any; the first caller computes. */
enum iso_err iso_engine_identity(struct iso_identity *out, iso_engine *e,
                                 const struct iso_progress *progress) ISO_NODISCARD;

/* --- layout ----------------------------------------------------------------------------------- */

enum iso_kv_class { ISO_KV_FULL, ISO_KV_WINDOW, ISO_KV_CLASSES };

struct iso_kv_layout {
    uint32_t n_layers, n_kv_heads, head_dim, page_bytes;
    uint32_t window;              /* positions a window layer sees, 0 when there are none */
    const uint8_t *layer_class;   /* [n_layers] enum iso_kv_class */
};
const struct iso_kv_layout *iso_engine_kv_layout(const iso_engine *e);

/* --- export (producer) ------------------------------------------------------------------------ */

/* Called on the stepping thread when a layer of a step is done, or on a device with a copy engine when
 * it is on its way: positions [first, last) of session now have their k and v in every head of that
 * layer. The pages may be read until the session is rewound or freed (window pages: until they expire,
 * unless keep_expired); iso_session_page() waits for the layer where it has to. */
typedef void iso_kv_ready_fn(void *arg, iso_session *s, uint32_t layer, uint32_t first,
                             uint32_t last);
void iso_session_on_ready(iso_session *s, iso_kv_ready_fn *fn, void *arg);

/* The same call for each layer, in order, as soon as its k and v were seen to be computed: for clocks.
 * On a device with a copy engine it comes up to some layers, at most 30 ms, behind ready. */
void iso_session_on_computed(iso_session *s, iso_kv_ready_fn *fn, void *arg);

/* The bytes of a page that holds at least one position, slots beyond the position zero; NULL when
 * it is not held (or a lost GPU cannot bring it). Where pages live in a GPU's memory this copies the
 * page's slot to its place in host memory first; the pointer keeps that place, the bytes are those of
 * the time of the call. The heads of a layer's page lie side by side. */
const uint8_t *iso_session_page(const iso_session *s, uint32_t layer, uint32_t head, uint32_t page);

/* --- export beside a running step (producers on a GPU) ------------------------------------------ */

/* Has the engine's device a copy engine for its pages? If not, iso_session_page() is a plain pointer
 * that any thread may read, and the calls below are not for it. */
bool iso_engine_kv_copies(const iso_engine *e);

/* The event behind the layer that a ready function is called for; only inside that function. */
uint64_t iso_session_ready_event(const iso_session *s);

/* The slot that holds a page in every layer of its class: stays right until the session is rewound or
 * freed. UINT32_MAX when the page is not held. Thread: the session's. */
uint32_t iso_session_page_slot(const iso_session *s, enum iso_kv_class c, uint32_t page);

/* Pinned host memory that pages are copied to. ISO_E_NOMEM. Thread: any. */
enum iso_err iso_kv_pin(void **out, iso_engine *e, size_t len) ISO_NODISCARD;
void iso_kv_unpin(iso_engine *e, void *p);

#define ISO_KV_COPY_PAGES 256u /* pages of one copy */

/* Waits for an event of iso_session_ready_event(). Thread: any.
 * Errors: ISO_E_AGAIN not within timeout_ns, without a message; ISO_E_GPU, ISO_E_TIMEOUT. */
enum iso_err iso_kv_event_wait(iso_engine *e, uint64_t event, int64_t timeout_ns) ISO_NODISCARD;

/* Starts to copy the pages in slots[n] of one layer to dst [n][heads][page bytes], pinned, once event is
 * done (0: at once), beside whatever the device computes. Blocks on nothing.
 * Needs: n <= ISO_KV_COPY_PAGES; the session holds the slots until iso_kv_copy_wait().
 * Errors: ISO_E_GPU. Thread: any. */
enum iso_err iso_kv_copy_start(uint64_t *copy, iso_engine *e, uint32_t layer, const uint32_t *slots,
                               uint32_t n, void *dst, uint64_t event) ISO_NODISCARD;

/* Waits for a copy; *took_ns is the copy engine's time for it. Errors: as iso_kv_event_wait(). */
enum iso_err iso_kv_copy_wait(int64_t *took_ns, iso_engine *e, uint64_t copy,
                              int64_t timeout_ns) ISO_NODISCARD;

/* First page of a class that the session still holds (0 for full layers). */
uint32_t iso_session_first_page(const iso_session *s, enum iso_kv_class c);

/* --- staging (consumer) ----------------------------------------------------------------------- */

/* Pages being received for a session, invisible to it and to every other one. */
typedef struct iso_kv_staging iso_kv_staging;

/* Reserves pages for positions [0, n_positions) of session s: of class c the pages
 * first_page[c] .. (n_positions-1)/64 are to be written by the caller; earlier ones are taken over by
 * reference from what the session holds now (full layers: all below first_page; the session's ids
 * must agree, which the caller has checked by chain digest).
 * Errors: ISO_E_LIMIT no pages left; ISO_E_CONTEXT n_positions beyond the session; ISO_E_ARG.
 * Owner: *out until publish or discard. Thread: the session's. */
enum iso_err iso_kv_stage(iso_kv_staging **out, iso_session *s, uint32_t n_positions,
                          const uint32_t first_page[ISO_KV_CLASSES]) ISO_NODISCARD;

/* Where page (layer, head, page) is to be written: its final memory. NULL when it is not one of the
 * pages to be received. */
uint8_t *iso_kv_staging_page(iso_kv_staging *st, uint32_t layer, uint32_t head, uint32_t page);

/* Recomputes k and v of positions[n] in every layer from the staged pages, in one step, and compares
 * them bit for bit with what was received. ids [n_positions] are the prompt's. Each position's whole
 * window must be staged. *ok false: the first difference is at *layer, *position.
 * Errors: those of iso_step(). */
enum iso_err iso_kv_audit(bool *ok, uint32_t *layer, uint32_t *position, iso_kv_staging *st,
                          const int32_t *ids, const uint32_t *positions, size_t n) ISO_NODISCARD;

/* The session becomes ids [n_positions] with the staged pages: one swap that cannot fail. Frees st. */
void iso_kv_publish(iso_kv_staging *st, const int32_t *ids);

/* Gives the pages back; the session is as it was. NULL is fine. */
void iso_kv_discard(iso_kv_staging *st);

/* Is this page one that exact-1 can have written? Scales +0 or in [2^-40, 2^100), k codes >= -2047,
 * v codes >= -127, slots from n_used on zero. reason receives static text when not. */
bool iso_kv_page_form(const char **reason, const uint8_t *page, uint32_t head_dim, uint32_t n_used);

/* --- digests ---------------------------------------------------------------------------------- */

/* kv-chain: SHA-256 over the SHA-256 of every held page, by layer, head, page. */
void iso_session_kv_chain(struct iso_digest *out, const iso_session *s);

/* --- sources ---------------------------------------------------------------------------------- */

/* Somebody who may have pages for a prompt: a producer's client, packs on disk. The engine asks
 * in order and never learns who it was. */
struct iso_kv_offer {
    uint32_t n_positions; /* positions that it can bring */
    uint64_t bytes;       /* that would move */
    double seconds;       /* estimate */
};

struct iso_kv_source {
    const char *name;
    void *arg;
    /* What could be brought for ids [n]? n_positions 0: nothing. Blocking, short. */
    enum iso_err (*offer)(void *arg, struct iso_kv_offer *out, const iso_session *s,
                          const int32_t *ids, size_t n);
    /* Brings pages for positions 0 .. n-2 into s, or leaves s exactly as it was and fails. */
    enum iso_err (*fetch)(void *arg, iso_session *s, const int32_t *ids, size_t n,
                          const struct iso_progress *progress);
    /* From any thread: makes a running fetch end soon with ISO_E_CANCELLED. */
    void (*cancel)(void *arg);
};

#endif
