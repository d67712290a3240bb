/* SPDX-License-Identifier: MIT
 * kv.c - pages seen from outside: export, digests, staging, publishing, audit. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/mem.h"
#include "engine/engine.h"

#define P ISO_PAGE_POSITIONS

/* --- export ----------------------------------------------------------------------------------- */

/* A page's bytes as they are now; NULL when a device cannot bring them. */
static const uint8_t *page_at(struct iso_engine *e, uint32_t layer, uint32_t head, uint32_t slot)
{
    const uint32_t c = e->layer_class[layer];
    const uint8_t *pages = iso_pages_read(e, c, e->layer_in_class[layer], slot);
    return pages ? pages + (size_t)head * e->layout.page_bytes : NULL;
}

const uint8_t *iso_session_page(const iso_session *s, uint32_t layer, uint32_t head, uint32_t page)
{
    struct iso_engine *e = s->e;
    if (layer >= e->layout.n_layers || head >= e->layout.n_kv_heads) return NULL;
    const uint32_t slot = iso_session_page_slot(s, (enum iso_kv_class)e->layer_class[layer], page);
    return slot == ISO_NO_SLOT ? NULL : page_at(e, layer, head, slot);
}

uint32_t iso_session_first_page(const iso_session *s, enum iso_kv_class c)
{
    return s->first_page[c];
}

void iso_session_on_computed(iso_session *s, iso_kv_ready_fn *fn, void *arg)
{
    s->computed = fn;
    s->computed_arg = arg;
}

/* --- export beside a running step ---------------------------------------------------------------- */

bool iso_engine_kv_copies(const iso_engine *e)
{
    return e->dev->vt->copy_start != NULL;
}

uint64_t iso_session_ready_event(const iso_session *s)
{
    return s->e->shadow.ready;
}

uint32_t iso_session_page_slot(const iso_session *s, enum iso_kv_class c, uint32_t page)
{
    if (page < s->first_page[c] || page >= s->end_page[c]) return ISO_NO_SLOT;
    return iso_engine_table(s->e, c, s->index)[page];
}

enum iso_err iso_kv_pin(void **out, iso_engine *e, size_t len)
{
    return e->dev->vt->pin(e->dev, len, "pages on their way to the wire", out);
}

void iso_kv_unpin(iso_engine *e, void *p)
{
    if (p != NULL) e->dev->vt->unpin(e->dev, p);
}

enum iso_err iso_kv_event_wait(iso_engine *e, uint64_t event, int64_t timeout_ns)
{
    return event == 0 ? ISO_OK : e->dev->vt->event_wait(e->dev, event, timeout_ns);
}

enum iso_err iso_kv_copy_start(uint64_t *copy, iso_engine *e, uint32_t layer, const uint32_t *slots,
                               uint32_t n, void *dst, uint64_t event)
{
    struct iso_copy_part part[ISO_KV_COPY_PAGES];
    const struct iso_kv_pool *p = &e->pool[e->layer_class[layer]];
    size_t n_parts = 0;
    assert(n > 0 && n <= ISO_KV_COPY_PAGES);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && slots[i] == slots[i - 1] + 1) { /* side by side */
            part[n_parts - 1].len += p->slot_bytes;
            continue;
        }
        part[n_parts++] = (struct iso_copy_part){
            .dst = (uint8_t *)dst + i * p->slot_bytes,
            .src = iso_kv_pool_span(p, e->layer_in_class[layer], slots[i]),
            .len = p->slot_bytes};
    }
    return e->dev->vt->copy_start(e->dev, part, n_parts, event, copy);
}

enum iso_err iso_kv_copy_wait(int64_t *took_ns, iso_engine *e, uint64_t copy, int64_t timeout_ns)
{
    return e->dev->vt->copy_wait(e->dev, copy, timeout_ns, took_ns);
}

void iso_session_kv_chain(struct iso_digest *out, const iso_session *s)
{
    const struct iso_kv_layout *y = &s->e->layout;
    struct iso_hasher *chain = iso_hasher_new();
    for (uint32_t l = 0; l < y->n_layers; l++) {
        const uint32_t c = s->e->layer_class[l];
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t p = s->first_page[c]; p < s->end_page[c]; p++) {
                struct iso_digest d = {{0}};
                const uint8_t *page = iso_session_page(s, l, h, p);
                if (page != NULL) iso_sha256(&d, page, y->page_bytes);
                iso_hasher_update(chain, d.bytes, sizeof(d.bytes));
            }
        }
    }
    iso_hasher_final(chain, out);
    iso_hasher_free(chain);
}

/* --- staging ---------------------------------------------------------------------------------- */

struct iso_kv_staging {
    struct iso_session *s;
    uint32_t n_positions;
    uint32_t first_page[ISO_KV_CLASSES], end_page[ISO_KV_CLASSES];
    uint32_t *slots[ISO_KV_CLASSES]; /* [end_page - first_page] */
    uint32_t extra[ISO_KV_CLASSES];  /* pages promised beyond the session's own */
    bool keep[ISO_KV_CLASSES];       /* decided when the ids are known, see decide() */
    bool written;                    /* pages that a device with its own memory does not have yet */
};

/* Does the session hold every page below first, complete, from its own first page on? */
static bool joins(const struct iso_session *s, uint32_t c, uint32_t first)
{
    return s->first_page[c] <= first && first <= s->n / P;
}

/* First page that the position behind the staged ones sees. */
static uint32_t first_seen(const struct iso_kv_staging *st, uint32_t c)
{
    return iso_engine_first_visible(st->s->e, c, st->n_positions) / P;
}

/* Pages below the staged ones stay when they belong to the same ids. Where they are needed the
 * caller has checked that; window pages that nobody sees at once could still be reached by a rewind. */
static void decide(struct iso_kv_staging *st, const int32_t *ids)
{
    const struct iso_session *s = st->s;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        const uint32_t first = st->first_page[c];
        st->keep[c] = joins(s, c, first) &&
                      (first > first_seen(st, c) ||
                       memcmp(s->ids, ids, (size_t)first * P * sizeof(*ids)) == 0);
    }
}

/* After publishing, the next position must find every page that it sees. */
static enum iso_err check_range(const struct iso_kv_staging *st, uint32_t c, uint32_t first,
                                uint32_t end)
{
    const struct iso_session *s = st->s;
    if (first > end) ISO_FAIL(ISO_E_ARG, "pages %u to %u of class %u", first, end, c);
    const uint32_t from = joins(s, c, first) ? s->first_page[c] : first;
    const uint32_t seen = first_seen(st, c);
    if (from > ISO_MIN(seen, end)) {
        ISO_FAIL(ISO_E_ARG,
                 "pages of class %u from %u on, but position %u sees page %u and the session only "
                 "holds %u positions",
                 c, first, st->n_positions, seen, s->n);
    }
    return ISO_OK;
}

/* What is held and staged together may exceed the session's own promise for a while. */
static enum iso_err promise(struct iso_kv_staging *st, uint32_t c, uint32_t n)
{
    struct iso_session *s = st->s;
    const uint32_t want = s->end_page[c] - s->first_page[c] + s->staged[c] + n;
    const uint32_t have = s->reserved[c] + s->extra[c];
    const uint32_t extra = want > have ? want - have : 0;
    ISO_TRY(iso_kv_pool_reserve(&s->e->pool[c], extra));
    st->extra[c] = extra;
    s->extra[c] += extra;
    s->staged[c] += n;
    return ISO_OK;
}

static void take_back(struct iso_kv_staging *st, uint32_t c, uint32_t n)
{
    struct iso_session *s = st->s;
    iso_kv_pool_unreserve(&s->e->pool[c], st->extra[c]);
    s->extra[c] -= st->extra[c];
    s->staged[c] -= n;
}

static enum iso_err stage_locked(struct iso_kv_staging *st, const uint32_t *first_page)
{
    struct iso_engine *e = st->s->e;
    const uint32_t end = (st->n_positions + P - 1) / P;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers > 0) ISO_TRY(check_range(st, c, first_page[c], end));
    }
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers == 0) continue;
        const enum iso_err err = promise(st, c, end - first_page[c]);
        if (err != ISO_OK) {
            for (uint32_t d = 0; d < c; d++) {
                if (e->pool[d].n_layers > 0) take_back(st, d, end - first_page[d]);
            }
            return err;
        }
    }
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers == 0) continue;
        st->first_page[c] = first_page[c];
        st->end_page[c] = end;
        st->slots[c] = iso_xalloc(end - first_page[c], sizeof(uint32_t));
        for (uint32_t p = first_page[c]; p < end; p++) {
            const uint32_t slot = iso_kv_pool_take(&e->pool[c]);
            assert(slot != ISO_NO_SLOT); /* promised above */
            st->slots[c][p - first_page[c]] = slot;
        }
    }
    return ISO_OK;
}

enum iso_err iso_kv_stage(iso_kv_staging **out, iso_session *s, uint32_t n_positions,
                          const uint32_t first_page[ISO_KV_CLASSES])
{
    if (n_positions >= s->n_ctx) {
        ISO_FAIL(ISO_E_CONTEXT, "%u positions and a token more, the session has room for %u",
                 n_positions, s->n_ctx);
    }
    struct iso_kv_staging *st = iso_xalloc(1, sizeof(*st));
    st->s = s;
    st->n_positions = n_positions;
    pthread_mutex_lock(&s->e->lock);
    const enum iso_err err = stage_locked(st, first_page);
    pthread_mutex_unlock(&s->e->lock);
    if (err != ISO_OK) {
        free(st);
        return err;
    }
    *out = st;
    return ISO_OK;
}

uint8_t *iso_kv_staging_page(iso_kv_staging *st, uint32_t layer, uint32_t head, uint32_t page)
{
    struct iso_engine *e = st->s->e;
    if (layer >= e->layout.n_layers || head >= e->layout.n_kv_heads) return NULL;
    const uint32_t c = e->layer_class[layer];
    if (page < st->first_page[c] || page >= st->end_page[c]) return NULL;
    const uint32_t slot = st->slots[c][page - st->first_page[c]];
    uint8_t *pages = iso_pages_write(e, c, e->layer_in_class[layer], slot);
    st->written = true;
    return pages ? pages + (size_t)head * e->layout.page_bytes : NULL;
}

/* Brings what was received to the device. */
static enum iso_err push_staged(struct iso_kv_staging *st)
{
    if (!st->written) return ISO_OK;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (st->slots[c] == NULL) continue;
        ISO_TRY(iso_pages_push(st->s->e, c, st->slots[c], st->end_page[c] - st->first_page[c]));
    }
    st->written = false;
    return ISO_OK;
}

void iso_kv_discard(iso_kv_staging *st)
{
    if (st == NULL) return;
    struct iso_engine *e = st->s->e;
    pthread_mutex_lock(&e->lock);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers == 0) continue;
        const uint32_t n = st->end_page[c] - st->first_page[c];
        iso_pages_forget(e, c, st->slots[c], n);
        for (uint32_t i = 0; i < n; i++) iso_kv_pool_unref(&e->pool[c], st->slots[c][i]);
        take_back(st, c, n);
        free(st->slots[c]);
    }
    pthread_mutex_unlock(&e->lock);
    free(st);
}

/* Swaps one class: pages from first_page on are the staged ones. */
static void publish_class(struct iso_kv_staging *st, uint32_t c)
{
    struct iso_session *s = st->s;
    struct iso_kv_pool *pool = &s->e->pool[c];
    uint32_t *table = iso_engine_table(s->e, c, s->index);
    const uint32_t keep = st->keep[c] ? st->first_page[c] : 0;
    for (uint32_t p = s->first_page[c]; p < s->end_page[c]; p++) {
        if (p < keep) continue;
        iso_kv_pool_unref(pool, table[p]);
        table[p] = ISO_NO_SLOT;
    }
    if (!st->keep[c]) s->first_page[c] = st->first_page[c];
    for (uint32_t p = st->first_page[c]; p < st->end_page[c]; p++) {
        table[p] = st->slots[c][p - st->first_page[c]];
    }
    s->end_page[c] = st->end_page[c];
    take_back(st, c, st->end_page[c] - st->first_page[c]);
    free(st->slots[c]);
}

void iso_kv_publish(iso_kv_staging *st, const int32_t *ids)
{
    struct iso_session *s = st->s;
    pthread_mutex_lock(&s->e->lock);
    decide(st, ids);
    /* A swap cannot fail. A device that is lost here says so at the session's next step. */
    const enum iso_err pushed = push_staged(st);
    (void)pushed;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (s->e->pool[c].n_layers > 0) publish_class(st, c);
    }
    iso_checkpoints_drop(s, iso_session_common(s, ids, st->n_positions));
    s->n = st->n_positions;
    s->logits_row = UINT32_MAX;
    memmove(s->ids, ids, st->n_positions * sizeof(*ids));
    iso_session_expire(s); /* an audit may have wanted more window pages than the session may keep */
    iso_checkpoint_take(s);
    pthread_mutex_unlock(&s->e->lock);
    free(st);
}

/* --- audit ------------------------------------------------------------------------------------ */

/* The slot that page p of class c will have after publishing, or ISO_NO_SLOT. */
static uint32_t staged_slot(const struct iso_kv_staging *st, uint32_t c, uint32_t p)
{
    if (p >= st->first_page[c] && p < st->end_page[c]) {
        return st->slots[c][p - st->first_page[c]];
    }
    const struct iso_session *s = st->s;
    const bool kept = st->keep[c] && p >= s->first_page[c] && p < st->first_page[c];
    return kept ? iso_engine_table(s->e, c, s->index)[p] : ISO_NO_SLOT;
}

/* Audit row i: its own page table, in which the page of its position is a copy that the step writes. */
static enum iso_err audit_row(const struct iso_kv_staging *st, uint32_t i, uint32_t position)
{
    struct iso_engine *e = st->s->e;
    struct iso_row_desc *desc = e->dev->vt->host(e->dev, e->b.rows);
    desc[i] = (struct iso_row_desc){.session = e->info.n_sessions + i, .position = position};
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers == 0) continue;
        uint32_t *table = iso_engine_table(e, c, desc[i].session);
        desc[i].first_visible[c] = iso_engine_first_visible(e, c, position);
        for (uint32_t p = desc[i].first_visible[c] / P; p <= position / P; p++) {
            table[p] = staged_slot(st, c, p);
            if (table[p] == ISO_NO_SLOT) {
                ISO_FAIL(ISO_E_ARG, "position %u cannot be audited: page %u was not sent", position,
                         p);
            }
        }
        const uint32_t copy = iso_kv_pool_take(&e->pool[c]);
        if (copy == ISO_NO_SLOT) ISO_FAIL(ISO_E_LIMIT, "no page left for the audit");
        iso_kv_pool_copy(&e->pool[c], copy, table[position / P]);
        table[position / P] = copy;
        float *rope = e->dev->vt->host(e->dev, e->b.rope[c]);
        iso_model_rope(e->model, rope + (size_t)i * e->model->hp.n_rot, c, position);
    }
    return ISO_OK;
}

/* Compares the rewritten copies with what was received, layer by layer. */
static bool audit_equal(const struct iso_kv_staging *st, const uint32_t *positions, uint32_t n,
                        uint32_t *layer, uint32_t *position)
{
    struct iso_engine *e = st->s->e;
    for (uint32_t l = 0; l < e->layout.n_layers; l++) {
        const uint32_t c = e->layer_class[l];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t p = positions[i] / P;
            const uint32_t copy = iso_engine_table(e, c, e->info.n_sessions + i)[p];
            const uint8_t *got = page_at(e, l, 0, staged_slot(st, c, p));
            const uint8_t *made = page_at(e, l, 0, copy);
            const bool both = got != NULL && made != NULL; /* else the device is lost: not equal */
            if (both && memcmp(got, made, e->pool[c].slot_bytes) == 0) continue;
            *layer = l;
            *position = positions[i];
            return false;
        }
    }
    return true;
}

static void audit_release(const struct iso_kv_staging *st, const uint32_t *positions, uint32_t n)
{
    struct iso_engine *e = st->s->e;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        for (uint32_t i = 0; i < n && e->pool[c].n_layers > 0; i++) {
            uint32_t *slot = &iso_engine_table(e, c, e->info.n_sessions + i)[positions[i] / P];
            const uint32_t original = staged_slot(st, c, positions[i] / P);
            if (*slot != original) iso_kv_pool_unref(&e->pool[c], *slot);
            *slot = ISO_NO_SLOT;
        }
    }
}

static enum iso_err audit_step(bool *ok, uint32_t *layer, uint32_t *position,
                               struct iso_kv_staging *st, const int32_t *ids,
                               const uint32_t *positions, uint32_t n)
{
    struct iso_engine *e = st->s->e;
    int32_t *step_ids = e->dev->vt->host(e->dev, e->b.ids);
    uint32_t made = 0;
    enum iso_err err = push_staged(st);
    for (; made < n && err == ISO_OK; made++) {
        step_ids[made] = ids[positions[made]];
        for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
            if (e->pool[c].n_layers == 0) continue;
            iso_engine_table(e, c, e->info.n_sessions + made)[positions[made] / P] = ISO_NO_SLOT;
        }
        err = audit_row(st, made, positions[made]);
    }
    if (err == ISO_OK) err = iso_forward_run(&(struct iso_forward){.e = e, .n_rows = n});
    if (err == ISO_OK) *ok = audit_equal(st, positions, n, layer, position);
    audit_release(st, positions, made);
    return err;
}

enum iso_err iso_kv_audit(bool *ok, uint32_t *layer, uint32_t *position, iso_kv_staging *st,
                          const int32_t *ids, const uint32_t *positions, size_t n)
{
    struct iso_engine *e = st->s->e;
    const size_t most = ISO_MIN((size_t)ISO_AUDIT_ROWS, (size_t)e->info.n_batch);
    for (size_t i = 0; i < n; i++) {
        if (positions[i] >= st->n_positions) {
            ISO_FAIL(ISO_E_ARG, "audit of position %u of %u", positions[i], st->n_positions);
        }
    }
    *ok = true;
    decide(st, ids);
    for (size_t at = 0; at < n && *ok; at += most) {
        pthread_mutex_lock(&e->lock);
        e->n_step_rows = 0;
        const enum iso_err err = audit_step(ok, layer, position, st, ids, positions + at,
                                            (uint32_t)ISO_MIN(most, n - at));
        pthread_mutex_unlock(&e->lock);
        ISO_TRY(err);
    }
    return ISO_OK;
}

/* --- form ------------------------------------------------------------------------------------- */

static bool scale_form(const uint8_t *p, bool used)
{
    const uint32_t bits = iso_get_u32(p);
    if (bits == 0) return true;
    return used && bits >= 0x2b800000u && bits < ISO_BITS_2P100; /* [2^-40, 2^100), sign 0 */
}

static bool all_zero(const uint8_t *p, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= p[i];
    return any == 0;
}

/* A k code is hi*16 + lo; -2048 is hi -128 with lo 0. */
static bool k_form(const uint8_t *hi, const uint8_t *lo, uint32_t d)
{
    bool ok = true;
    for (uint32_t i = 0; i < d / 2; i++) {
        ok &= !(hi[i] == 0x80 && (lo[i] & 15) == 0);
        ok &= !(hi[i + d / 2] == 0x80 && (lo[i] >> 4) == 0);
    }
    return ok;
}

bool iso_kv_page_form(const char **reason, const uint8_t *page, uint32_t d, uint32_t n_used)
{
    for (uint32_t t = 0; t < P; t++) {
        const bool used = t < n_used;
        *reason = "a scale is not +0 or within [2^-40, 2^100)";
        if (!scale_form(page + iso_page_k_scale(d) + 4 * t, used)) return false;
        if (!scale_form(page + iso_page_v_scale(d) + 4 * t, used)) return false;
        const uint8_t *hi = page + (size_t)t * d;
        const uint8_t *lo = page + iso_page_k_lo(d) + (size_t)t * (d / 2);
        *reason = "a k code is below -2047";
        if (used && !k_form(hi, lo, d)) return false;
        *reason = "an unused slot is not zero";
        if (!used && (!all_zero(hi, d) || !all_zero(lo, d / 2))) return false;
    }
    for (uint32_t i = 0; i < d; i++) {
        const uint8_t *v = page + iso_page_v(d) + (size_t)i * P;
        *reason = "a v code is below -127";
        if (memchr(v, 0x80, n_used) != NULL) return false;
        *reason = "an unused slot is not zero";
        if (!all_zero(v + n_used, P - n_used)) return false;
    }
    *reason = NULL;
    return true;
}
