/* SPDX-License-Identifier: MIT
 * emu_shadow.c - is an access inside of what the dispatch was given, and does it race with another one?
 *
 * Part of an EMULATION of Metal on the CPU. Each byte of a buffer and of threadgroup memory has a cell: who
 * wrote it last, and two lanes that read it since. Two accesses, one a write, not both atomic, are in conflict
 * when nothing orders them:
 *     same threadgroup: a threadgroup_barrier, or for lanes of one SIMD group a simdgroup_barrier, with the
 *                       flag of that memory between them;
 *     same dispatch:    nothing orders threadgroups;
 *     same commit:      a barrier on that buffer recorded between the two dispatches.
 * The order in which the emulator happens to run them does not matter for what is found, apart from readers
 * beyond two, of which the cell forgets some.
 */
#include "emu_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

/* One access: run 26 bits, threadgroup epoch 13, SIMD group epoch 13, lane 11, atomic 1. */
typedef uint64_t stamp;

#define RUN_BITS 26
#define EPOCH_MASK 0x1fffu
#define COLLECTIVE_LANE 1024u /* plus the group's first lane: whichever lane it was */

struct emu_cell {
    stamp write, read[2];
};

struct run {
    uint32_t dispatch, group; /* which threadgroup it is */
};

struct emu_shadow {
    const struct emu_loaded *module;
    struct emu_dispatch *const *dispatches;
    const struct emu_dispatch *d;
    struct run *runs; /* of this commit, from first on */
    size_t n_runs, cap_runs;
    uint32_t first; /* runs before it are of earlier commits */
    uint32_t run;   /* the current one, never 0 */
    struct emu_cell *arena; /* of threadgroup memory, [arena_len] */
    size_t arena_len;
};

static uint32_t run_of(stamp s) { return (uint32_t)(s >> (64 - RUN_BITS)); }
static unsigned group_epoch_of(stamp s) { return (unsigned)(s >> 25) & EPOCH_MASK; }
static unsigned simd_epoch_of(stamp s) { return (unsigned)(s >> 12) & EPOCH_MASK; }
static unsigned lane_of(stamp s) { return (unsigned)(s >> 1) & 2047; }
static bool is_atomic(stamp s) { return s & 1; }

static struct emu_cell *map_cells(size_t n)
{
    void *p = mmap(NULL, n * sizeof(struct emu_cell), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct emu_shadow *emu_shadow_new(const struct emu_loaded *module)
{
    struct emu_shadow *s = emu_alloc(1, sizeof(*s));
    s->module = module;
    s->first = s->run = 1;
    return s;
}

void emu_shadow_free(struct emu_shadow *s)
{
    if (!s) return;
    if (s->arena) munmap(s->arena, s->arena_len * sizeof(*s->arena));
    free(s->runs);
    free(s);
}

void emu_shadow_forget(struct emu_buffer *b)
{
    if (b->cells) munmap(b->cells, b->len * sizeof(*b->cells));
    b->cells = NULL;
}

void emu_shadow_begin(struct emu_shadow *s)
{
    s->n_runs = 0;
    s->first = s->run + 1;
}

void emu_shadow_group(struct emu_shadow *s, struct emu_dispatch *const *dispatches, const struct emu_dispatch *d,
                      uint32_t g)
{
    s->dispatches = dispatches;
    s->d = d;
    s->run++;
    if (s->n_runs == s->cap_runs) {
        s->cap_runs = s->cap_runs ? 2 * s->cap_runs : 1024;
        s->runs = emu_realloc(s->runs, s->cap_runs, sizeof(*s->runs));
    }
    s->runs[s->n_runs++] = (struct run){d->index, g};
}

/* Whether the current access a, stamped now, comes after or before old with something between. b is the
 * buffer, NULL for threadgroup memory. */
static bool ordered(const struct emu_shadow *s, stamp old, stamp now, const struct emu_buffer *b)
{
    const uint32_t run = run_of(old);
    if (run != s->run) {
        if (!b || run < s->first) return true;
        const struct run *other = &s->runs[run - s->first];
        if (other->dispatch == s->d->index) return false;
        const struct emu_dispatch *e = s->dispatches[other->dispatch];
        uint32_t mine = 0, theirs = 0;
        for (size_t i = 1; i < s->d->n_bound; i++) {
            if (s->d->bound[i].buffer == b) mine = s->d->bound[i].epoch;
        }
        for (size_t i = 1; i < e->n_bound; i++) {
            if (e->bound[i].buffer == b) theirs = e->bound[i].epoch;
        }
        return mine != theirs;
    }
    const unsigned l = lane_of(old), m = lane_of(now);
    if (l == m || group_epoch_of(old) != group_epoch_of(now)) return true;
    return (l & 1023) / EMU_SIMD == (m & 1023) / EMU_SIMD && simd_epoch_of(old) != simd_epoch_of(now);
}

static void describe(const struct emu_shadow *s, stamp old, bool wrote, char *out, size_t len)
{
    const unsigned l = lane_of(old);
    const char *did = wrote ? "write" : "read";
    char who[60];
    if (l & COLLECTIVE_LANE) snprintf(who, sizeof(who), "SIMD group %u", (l & 1023) / EMU_SIMD);
    else snprintf(who, sizeof(who), "lane %u", l);
    if (run_of(old) == s->run) {
        snprintf(out, len, "race with the %s%s of %s without a barrier between", is_atomic(old) ? "atomic " : "", did,
                 who);
        return;
    }
    const struct run *other = &s->runs[run_of(old) - s->first];
    const struct emu_dispatch *d = s->dispatches[other->dispatch];
    if (d == s->d) {
        snprintf(out, len, "race with the %s of threadgroup number %u, %s", did, other->group, who);
        return;
    }
    snprintf(out, len, "hazard with the %s of dispatch %u, kernel %s: no barrier on this buffer between it and dispatch %u",
             did, d->index, d->pipeline->kernel->name, s->d->index);
}

/* Checks the n cells of an access and enters it. false: message holds the conflict of byte *bad. */
static bool enter(struct emu_shadow *s, struct emu_cell *c, size_t n, stamp now, unsigned kind,
                  const struct emu_buffer *b, size_t *bad, char *message, size_t len)
{
    const bool write = kind & EMU_WRITE, atomic = kind & EMU_ATOMIC;
    for (size_t i = 0; i < n; i++, c++) {
        *bad = i;
        if (c->write && !(atomic && is_atomic(c->write)) && !ordered(s, c->write, now, b)) {
            describe(s, c->write, true, message, len);
            return false;
        }
        for (int k = 0; write && k < 2; k++) {
            if (!c->read[k] || (atomic && is_atomic(c->read[k])) || ordered(s, c->read[k], now, b)) continue;
            describe(s, c->read[k], false, message, len);
            return false;
        }
        if (write) {
            c->write = now;
            continue;
        }
        /* The first reader stays while it is of use; the second is the latest other one. */
        if (!c->read[0] || ordered(s, c->read[0], now, b)) c->read[0] = now;
        else c->read[1] = now;
    }
    return true;
}

static stamp make_stamp(const struct emu_shadow *s, const struct emu_access_at *a, int memory)
{
    const unsigned lane = a->kind & EMU_COLLECTIVE ? COLLECTIVE_LANE | (a->lane & ~31u) : a->lane;
    return (uint64_t)s->run << (64 - RUN_BITS) | (uint64_t)(a->group_epoch[memory] & EPOCH_MASK) << 25 |
           (uint64_t)(a->simd_epoch[memory] & EPOCH_MASK) << 12 | (uint64_t)lane << 1 | !!(a->kind & EMU_ATOMIC);
}

static const char *verb(unsigned kind)
{
    return kind & EMU_WRITE ? "write" : "read";
}

static bool in_arena(struct emu_shadow *s, const struct emu_access_at *a, const char *p, size_t size, char *message,
                     size_t len)
{
    const size_t at = (size_t)(p - a->arena);
    const struct emu_block *near = NULL;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < a->n_blocks; i++) {
        const struct emu_block *k = &a->blocks[i];
        const size_t away = at < k->at ? k->at - at : at > k->at + k->len ? at - k->at - k->len : 0;
        if (away < best) near = k;
        best = ISO_MIN(best, away);
    }
    if (!near || at < near->at || at + size > near->at + near->len) {
        snprintf(message, len, "%s of %zu bytes at %lld of threadgroup memory %s, which has %zu bytes", verb(a->kind),
                 size, near ? (long long)at - (long long)near->at : 0, near ? near->name : "?", near ? near->len : 0);
        return false;
    }
    if (!s->arena) {
        s->arena_len = (size_t)(a->arena_end - a->arena);
        s->arena = map_cells(s->arena_len);
    }
    struct emu_cell *c = s->arena + at;
    char what[300];
    size_t bad = 0;
    bool ok = true;
    for (size_t i = 0; i < size && ok && !(a->kind & EMU_WRITE); i++) {
        bad = i;
        ok = c[i].write && run_of(c[i].write) == s->run;
        if (!ok) snprintf(what, sizeof(what), "nobody has written there");
    }
    if (ok) ok = enter(s, c, size, make_stamp(s, a, 1), a->kind, NULL, &bad, what, sizeof(what));
    if (!ok) {
        snprintf(message, len, "%s of threadgroup memory %s at byte %zu: %s", verb(a->kind), near->name,
                 at + bad - near->at, what);
    }
    return ok;
}

static bool in_buffer(struct emu_shadow *s, const struct emu_access_at *a, size_t i, const char *p, size_t size,
                      char *message, size_t len)
{
    const struct emu_bound *b = &s->d->bound[i];
    if (b->buffer->wrapped) {
        if (!(a->kind & EMU_WRITE)) return true;
        snprintf(message, len, "write of %zu bytes at %zu of buffer(%zu), which is read-only", size,
                 (size_t)(p - b->at), i);
        return false;
    }
    if (!b->buffer->cells) b->buffer->cells = map_cells(b->buffer->len);
    char what[300];
    size_t bad = 0;
    if (!b->buffer->cells) {
        snprintf(message, len, "no memory for the checks of buffer(%zu)", i);
        return false;
    }
    if (enter(s, b->buffer->cells + (p - b->buffer->host), size, make_stamp(s, a, 0), a->kind, b->buffer, &bad, what,
              sizeof(what))) {
        return true;
    }
    snprintf(message, len, "%s of buffer(%zu) at byte %zu: %s", verb(a->kind), i, (size_t)(p - b->at) + bad, what);
    return false;
}

/* Tables of the program, and function constants, which a pipeline must set. */
static bool in_module(const struct emu_shadow *s, const char *p, char *message, size_t len)
{
    const struct emu_module *m = s->module->module;
    for (unsigned i = 0; i < m->n_constants; i++) {
        const struct emu_constant *c = &m->constants[i];
        if (c->value != p || *c->defined || c->optional) continue;
        snprintf(message, len, "function constant %s (%u) is used and the pipeline does not set it", c->name, c->index);
        return false;
    }
    return true;
}

/* An address that nothing bound holds: names what is nearest. */
static void describe_outside(const struct emu_shadow *s, const struct emu_access_at *a, const char *p, size_t size,
                             char *message, size_t len)
{
    size_t best = SIZE_MAX, near = 0, length = s->d->args_len;
    const char *base = (const char *)s->d->args;
    for (size_t i = 0; i < s->d->n_bound; i++) {
        const char *lo = i ? s->d->bound[i].at : (const char *)s->d->args;
        const size_t n = i ? s->d->bound[i].len : s->d->args_len;
        if (!lo) continue;
        const size_t away = p < lo ? (size_t)(lo - p) : p < lo + n ? 0 : (size_t)(p - lo - n);
        if (away >= best) continue;
        best = away;
        near = i;
        base = lo;
        length = n;
    }
    if (p < (const char *)65536) {
        snprintf(message, len, "%s of %zu bytes at address %p: a buffer that is not bound", verb(a->kind), size,
                 (const void *)p);
    } else if (best < ((size_t)1 << 30)) {
        snprintf(message, len, "%s of %zu bytes at %lld of buffer(%zu), which has %zu bytes", verb(a->kind), size,
                 (long long)(p - base), near, length);
    } else {
        snprintf(message, len, "%s of %zu bytes outside of everything bound", verb(a->kind), size);
    }
}

bool emu_shadow_access(struct emu_shadow *s, const struct emu_access_at *a, const void *ptr, size_t size,
                       char *message, size_t len)
{
    const char *p = ptr, *args = (const char *)s->d->args;
    if (a->kind & EMU_ALIGNED && (uintptr_t)p % size) {
        snprintf(message, len, "%s of %zu bytes at an address that is %zu beyond a multiple of that", verb(a->kind),
                 size, (size_t)((uintptr_t)p % size));
        return false;
    }
    if (p >= a->arena && p < a->arena_end) return in_arena(s, a, p, size, message, len);
    for (size_t i = 1; i < s->d->n_bound; i++) {
        const struct emu_bound *b = &s->d->bound[i];
        if (b->at && p >= b->at && p + size <= b->at + b->len) return in_buffer(s, a, i, p, size, message, len);
    }
    const bool write = a->kind & EMU_WRITE;
    if (!write && p >= args && p + size <= args + s->d->args_len) return true;
    if (!write && p >= s->module->lo && p + size <= s->module->hi) return in_module(s, p, message, len);
    if (p >= a->stack && p < a->stack_end) {
        snprintf(message, len, "%s of %zu bytes of another lane's thread memory", verb(a->kind), size);
        return false;
    }
    if (write && p >= args && p < args + s->d->args_len) {
        snprintf(message, len, "write to the arguments in buffer(0)");
        return false;
    }
    describe_outside(s, a, p, size, message, len);
    return false;
}
