/* SPDX-License-Identifier: MIT
 * emu_group.c - one threadgroup: its lanes are fibers that change at barriers and SIMD operations.
 *
 * Part of an EMULATION of Metal on the CPU. Which lane runs next is random.
 */
#include "emu_internal.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/mem.h"

#define STACK_BYTES (256 * 1024)
#define GUARD_BYTES 4096
#define STRIDE (STACK_BYTES + GUARD_BYTES)
#define ARENA_BYTES (128 * 1024) /* threadgroup memory with gaps between its variables */
#define GAP 64
#define N_SIMD (EMU_LANES / EMU_SIMD)

enum lane_state { READY, AT_BARRIER, AT_MEETING, RETURNED };

struct lane {
    struct emu_fiber at;
    char *stack;
    bool started; /* its fiber exists */
    enum lane_state state;
    int line;       /* where it waits */
    const char *op; /* for what */
};

/* A SIMD group: what its lanes are doing together. */
struct simd {
    uint32_t live, came;
    const char *op;
    int line;
    unsigned turn; /* which of the two meetings is next */
    unsigned barrier_flags;
    struct emu_meet meet[2];
    uint32_t epoch[2]; /* simdgroup barriers passed: device, threadgroup */
};

struct emu_runner {
    struct emu_random *random;
    const struct emu_loaded *module;
    const struct emu_dispatch *d;
    struct emu_shadow *shadow;
    struct emu_ids ids;
    struct emu_fiber home; /* the host */
    struct lane lanes[EMU_LANES];
    struct simd simds[N_SIMD];
    uint32_t ready[EMU_LANES], n_ready;
    uint32_t n_lanes, n_returned, n_came;
    uint32_t current;
    int barrier_line;
    unsigned barrier_flags;
    uint32_t epoch[2]; /* threadgroup barriers passed: device, threadgroup */
    char *stacks, *arena;
    size_t arena_used, arena_asked;
    struct emu_block blocks[EMU_BLOCKS];
    size_t n_blocks;
    bool failed;
    char message[EMU_MESSAGE_LEN];
};

static struct emu_runner *g_runner; /* the one that works; its lanes have no other way to find it */

/* Leaves the current lane for the host. */
static void go_home(struct emu_runner *r)
{
    emu_fiber_switch(&r->lanes[r->current].at, &r->home);
}

/* Leaves the kernel for good with a message; where is a place of the source. */
static _Noreturn void stop(struct emu_runner *r, const char *where, const char *fmt, ...)
{
    char what[EMU_MESSAGE_LEN - 200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    snprintf(r->message, sizeof(r->message), "kernel %s, group (%u, %u, %u), %s%s%s",
             r->d->pipeline->kernel->name, r->ids.group[0], r->ids.group[1], r->ids.group[2], what,
             where ? ", " : "", where ? where : "");
    r->failed = true;
    for (;;) go_home(r); /* nobody comes back */
}

/* "0-3, 8": the lanes whose state and line are these. */
static void list_lanes(const struct emu_runner *r, enum lane_state state, int line, char *out, size_t len)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < r->n_lanes; i++) {
        uint32_t end = i;
        while (end < r->n_lanes && r->lanes[end].state == state &&
               (state == RETURNED || r->lanes[end].line == line)) {
            end++;
        }
        if (end == i) continue;
        if (at + 30 > len) {
            snprintf(out + at, len - at, ", ..");
            return;
        }
        at += (size_t)snprintf(out + at, len - at, end - i > 1 ? "%s%u-%u" : "%s%u", at ? ", " : "", i, end - 1);
        i = end;
    }
}

/* All live lanes wait and none can go on. */
static _Noreturn void stop_divergent(struct emu_runner *r)
{
    char text[500], lanes[120];
    size_t at = 0;
    int seen[8];
    size_t n_seen = 0;
    list_lanes(r, RETURNED, 0, lanes, sizeof(lanes));
    if (lanes[0]) at += (size_t)snprintf(text, sizeof(text), "; lanes %s have returned", lanes);
    for (uint32_t i = 0; i < r->n_lanes && n_seen < 4; i++) {
        const struct lane *l = &r->lanes[i];
        bool known = l->state == RETURNED;
        for (size_t k = 0; k < n_seen; k++) known = known || seen[k] == l->line;
        if (known) continue;
        seen[n_seen++] = l->line;
        list_lanes(r, l->state, l->line, lanes, sizeof(lanes));
        at += (size_t)snprintf(text + at, sizeof(text) - at, "; lanes %s wait at %s of line %d", lanes, l->op,
                               l->line);
        at = ISO_MIN(at, sizeof(text) - 1);
    }
    stop(r, NULL, "divergence%s", at ? text : "");
}

static void wake(struct emu_runner *r, uint32_t i)
{
    r->lanes[i].state = READY;
    r->ready[r->n_ready++] = i;
}

/* The current lane, or the host at the start, waits; a random lane that is ready runs. */
static void next(struct emu_runner *r, struct emu_fiber *from)
{
    if (r->n_ready == 0) {
        if (r->n_returned != r->n_lanes) stop_divergent(r);
        emu_fiber_switch(from, &r->home);
        return;
    }
    const uint32_t k = r->n_ready > 1 ? emu_random_below(r->random, r->n_ready) : 0;
    const uint32_t i = r->ready[k];
    r->ready[k] = r->ready[--r->n_ready];
    r->current = i;
    if (from != &r->lanes[i].at) emu_fiber_switch(from, &r->lanes[i].at);
}

/* The current lane waits until some other wakes it. */
static void wait_here(struct emu_runner *r)
{
    next(r, &r->lanes[r->current].at);
}

static void simd_done(struct emu_runner *r, uint32_t s)
{
    struct simd *g = &r->simds[s];
    struct emu_meet *m = &g->meet[g->turn];
    m->active = g->came;
    m->seed = emu_random(r->random);
    if (g->barrier_flags & EMU_MEM_DEVICE) g->epoch[0]++;
    if (g->barrier_flags & EMU_MEM_THREADGROUP) g->epoch[1]++;
    g->barrier_flags = 0;
    for (uint32_t i = 0; i < EMU_SIMD; i++) {
        if (g->came >> i & 1) wake(r, s * EMU_SIMD + i);
    }
    g->came = 0;
    g->turn ^= 1;
}

static void group_done(struct emu_runner *r)
{
    if (r->barrier_flags & EMU_MEM_DEVICE) r->epoch[0]++;
    if (r->barrier_flags & EMU_MEM_THREADGROUP) r->epoch[1]++;
    r->n_came = 0;
    for (uint32_t i = 0; i < r->n_lanes; i++) wake(r, i);
}

/* ---- what kernels call */

static const struct emu_ids *abi_ids(void)
{
    g_runner->ids.thread = g_runner->current;
    return &g_runner->ids;
}

static void *abi_buffer(unsigned index)
{
    const struct emu_dispatch *d = g_runner->d;
    if (index == 0) return d->args;
    return index < d->n_bound ? d->bound[index].at : NULL;
}

static void *abi_group_memory(unsigned id, const char *name, unsigned size, unsigned align)
{
    struct emu_runner *r = g_runner;
    for (size_t i = 0; i < r->n_blocks; i++) {
        if (r->blocks[i].id == id) return r->arena + r->blocks[i].at;
    }
    r->arena_asked += size;
    const size_t at = (r->arena_used + GAP + align - 1) / align * align;
    if (r->arena_asked > EMU_GROUP_BYTES) {
        stop(r, NULL, "%s: %zu bytes of threadgroup memory, limit %d", name, r->arena_asked, EMU_GROUP_BYTES);
    }
    if (r->n_blocks == EMU_BLOCKS || at + size + GAP > ARENA_BYTES) {
        stop(r, NULL, "%s: too many threadgroup variables for the emulator", name);
    }
    r->blocks[r->n_blocks++] = (struct emu_block){.name = name, .id = id, .at = at, .len = size};
    r->arena_used = at + size;
    uint64_t v = 0;
    for (size_t i = 0; i < size; i++) { /* what a group finds there is not defined */
        if (i % 8 == 0) v = emu_random(r->random);
        r->arena[at + i] = (char)(v >> i % 8 * 8);
    }
    return r->arena + at;
}

static const struct emu_meet *abi_meet(const char *op, int line, const void *value, unsigned size, unsigned *lane)
{
    struct emu_runner *r = g_runner;
    const uint32_t i = r->current, k = i % EMU_SIMD, s = i / EMU_SIMD;
    struct simd *g = &r->simds[s];
    struct lane *l = &r->lanes[i];
    l->line = line;
    l->op = op;
    if (g->came == 0) {
        g->op = op;
        g->line = line;
    }
    const struct emu_meet *m = &g->meet[g->turn];
    memcpy(g->meet[g->turn].slot[k], value, size);
    l->state = AT_MEETING;
    if (g->line != line || (g->op != op && strcmp(g->op, op) != 0)) stop_divergent(r);
    g->came |= 1u << k;
    if (g->came == g->live) simd_done(r, s);
    wait_here(r);
    if (lane) *lane = k;
    return m;
}

static void abi_barrier(int scope, unsigned flags, int line)
{
    struct emu_runner *r = g_runner;
    struct lane *l = &r->lanes[r->current];
    if (scope == EMU_SIMDGROUP) {
        r->simds[r->current / EMU_SIMD].barrier_flags = flags;
        abi_meet("simdgroup_barrier", line, &flags, sizeof(flags), NULL);
        return;
    }
    l->line = line;
    l->op = "threadgroup_barrier";
    l->state = AT_BARRIER;
    if (r->n_came == 0) r->barrier_line = line;
    if (r->barrier_line != line) stop_divergent(r);
    r->barrier_flags = flags;
    if (++r->n_came == r->n_lanes) group_done(r);
    wait_here(r);
}

static void abi_access(const void *p, unsigned long size, unsigned kind, const void *pc, int line)
{
    struct emu_runner *r = g_runner;
    if (!r->shadow) return;
    const uint32_t i = r->current;
    const char *stack = r->lanes[i].stack;
    if ((const char *)p >= stack && (const char *)p + size <= stack + STACK_BYTES) return;
    /* shim/ reads what meetings gave, and the table of these functions. */
    const char *mine = (const char *)r, *table = (const char *)emu_runner_abi();
    if (!(kind & EMU_WRITE) && (const char *)p >= mine && (const char *)p < mine + sizeof(*r)) return;
    if (!(kind & EMU_WRITE) && (const char *)p >= table && (const char *)p < table + sizeof(struct emu_abi)) return;
    const struct simd *g = &r->simds[i / EMU_SIMD];
    const struct emu_access_at a = {
        .lane = i,
        .kind = kind,
        .group_epoch = {r->epoch[0], r->epoch[1]},
        .simd_epoch = {g->epoch[0], g->epoch[1]},
        .stack = r->stacks,
        .stack_end = r->stacks + (size_t)EMU_LANES * STRIDE,
        .arena = r->arena,
        .arena_end = r->arena + ARENA_BYTES,
        .blocks = r->blocks,
        .n_blocks = r->n_blocks,
    };
    char what[EMU_MESSAGE_LEN - 400], where[200];
    if (emu_shadow_access(r->shadow, &a, p, size, what, sizeof(what))) return;
    emu_module_where(r->module, pc, line, where, sizeof(where));
    stop(r, where, "lane %u: %s", i, what);
}

static unsigned long abi_random(void)
{
    return emu_random(g_runner->random);
}

static void abi_fail(const char *message, int line)
{
    char where[200];
    emu_module_where(g_runner->module, NULL, line, where, sizeof(where));
    stop(g_runner, where, "lane %u: %s", g_runner->current, message);
}

const struct emu_abi *emu_runner_abi(void)
{
    static const struct emu_abi abi = {
        .ids = abi_ids,
        .buffer = abi_buffer,
        .group_memory = abi_group_memory,
        .barrier = abi_barrier,
        .meet = abi_meet,
        .access = abi_access,
        .random = abi_random,
        .fail = abi_fail,
    };
    return &abi;
}

/* ---- faults: what the fast build sees of a wrong address */

static struct sigaction g_before[2];
static char g_signal_stack[65536];

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct emu_runner *r = g_runner;
    const char *pc = NULL;
#if defined(__x86_64__)
    pc = (const char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    pc = (const char *)((ucontext_t *)context)->uc_mcontext.pc;
#else
    (void)context;
#endif
    if (!r || pc < r->module->lo || pc >= r->module->hi) { /* not a kernel's: as before, when this returns */
        sigaction(number, &g_before[number == SIGBUS], NULL);
        return;
    }
    char where[200];
    emu_module_where(r->module, pc + 1, 0, where, sizeof(where));
    stop(r, where, "lane %u: memory fault at %p: an address outside of all buffers or not a multiple of the vector's size",
         r->current, info->si_addr);
}

void emu_runner_catch(bool on)
{
    if (!on) {
        sigaction(SIGSEGV, &g_before[0], NULL);
        sigaction(SIGBUS, &g_before[1], NULL);
        return;
    }
    /* Its own stack: a lane may have used up its. */
    const stack_t s = {.ss_sp = g_signal_stack, .ss_size = sizeof(g_signal_stack)};
    sigaltstack(&s, NULL);
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&a.sa_mask);
    sigaction(SIGSEGV, &a, &g_before[0]);
    sigaction(SIGBUS, &a, &g_before[1]);
}

/* ---- fibers */

/* A lane returned: its SIMD group may have waited for it alone. */
static void lane_returned(struct emu_runner *r)
{
    const uint32_t i = r->current, s = i / EMU_SIMD;
    struct simd *g = &r->simds[s];
    r->lanes[i].state = RETURNED;
    r->n_returned++;
    g->live &= ~(1u << i % EMU_SIMD);
    if (g->came && g->came == g->live) simd_done(r, s);
}

/* A fiber runs one kernel after another; between two it waits. */
static void fiber(void)
{
    for (;;) {
        g_runner->d->pipeline->kernel->run();
        lane_returned(g_runner);
        wait_here(g_runner);
    }
}

struct emu_runner *emu_runner_new(struct emu_random *random, const struct emu_loaded *module)
{
    struct emu_runner *r = emu_alloc(1, sizeof(*r));
    r->random = random;
    r->module = module;
    void *m = mmap(NULL, (size_t)EMU_LANES * STRIDE + ARENA_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) {
        free(r);
        return NULL;
    }
    r->stacks = m;
    r->arena = r->stacks + (size_t)EMU_LANES * STRIDE;
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        mprotect(r->stacks + (size_t)i * STRIDE, GUARD_BYTES, PROT_NONE);
        r->lanes[i].stack = r->stacks + (size_t)i * STRIDE + GUARD_BYTES;
    }
    return r;
}

void emu_runner_free(struct emu_runner *r)
{
    if (!r) return;
    munmap(r->stacks, (size_t)EMU_LANES * STRIDE + ARENA_BYTES);
    free(r);
}

const char *emu_runner_message(const struct emu_runner *r)
{
    return r->message;
}

/* Flush-to-zero on or off, by the seed: hardware may do either, exact-1 must not notice. */
static unsigned set_flush(bool on)
{
#if defined(__x86_64__)
    const unsigned old = _mm_getcsr();
    _mm_setcsr(on ? old | 0x8040u : old & ~0x8040u);
    return old;
#elif defined(__aarch64__)
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    const uint64_t now = on ? old | (1u << 24) : old & ~(uint64_t)(1u << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(now));
    return (unsigned)old;
#else
    (void)on;
    return 0;
#endif
}

static void restore_flush(unsigned old)
{
#if defined(__x86_64__)
    _mm_setcsr(old);
#elif defined(__aarch64__)
    const uint64_t now = old;
    __asm__ volatile("msr fpcr, %0" : : "r"(now));
#else
    (void)old;
#endif
}

static void begin_group(struct emu_runner *r, const struct emu_dispatch *d, uint32_t g)
{
    r->d = d;
    r->ids = (struct emu_ids){.threads = d->group_threads, .dynamic_bytes = d->dynamic_bytes};
    memcpy(r->ids.groups, d->groups, sizeof(r->ids.groups));
    r->ids.group[0] = g % d->groups[0];
    r->ids.group[1] = g / d->groups[0] % d->groups[1];
    r->ids.group[2] = g / d->groups[0] / d->groups[1];
    r->n_lanes = d->group_threads;
    r->n_returned = r->n_came = r->n_ready = 0;
    r->epoch[0] = r->epoch[1] = 0;
    r->n_blocks = 0;
    r->arena_used = r->arena_asked = 0;
    for (uint32_t s = 0; s * EMU_SIMD < r->n_lanes; s++) {
        struct simd *m = &r->simds[s];
        m->live = 0xffffffffu;
        m->came = m->barrier_flags = 0;
        m->epoch[0] = m->epoch[1] = 0;
    }
    for (uint32_t i = 0; i < r->n_lanes; i++) {
        if (!r->lanes[i].started) emu_fiber_prepare(&r->lanes[i].at, r->lanes[i].stack, STACK_BYTES, fiber);
        r->lanes[i].started = true;
        wake(r, i);
    }
}

bool emu_runner_group(struct emu_runner *r, const struct emu_dispatch *d, uint32_t g, struct emu_shadow *shadow)
{
    g_runner = r;
    r->shadow = shadow;
    begin_group(r, d, g);
    *r->module->module->order = emu_random(r->random);
    const unsigned old = set_flush(emu_random(r->random) & 1);
    next(r, &r->home);
    restore_flush(old);
    g_runner = NULL;
    return !r->failed;
}
