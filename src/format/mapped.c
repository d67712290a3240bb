/* SPDX-License-Identifier: MIT
 * mapped.c - read-only file mappings and the SIGBUS guard over them.
 *
 * The handler finds the mapping of the faulting address in a list of slots that is only ever
 * prepended to, so that it needs no lock. A slot that is being changed has an odd sequence number
 * and is skipped: the mapping that the faulting thread reads cannot be opened or closed just then.
 */
#include "format/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

/* Slots are reused and never freed: a handler on another thread may be reading one. */
struct slot {
    struct slot *next;    /* immutable once published */
    _Atomic unsigned seq; /* odd while begin and end change */
    _Atomic uintptr_t begin;
    _Atomic uintptr_t end; /* 0 in a free slot */
    _Atomic bool faulted;  /* release by the handler, acquire by iso_mapped_check() */
    bool used;             /* guarded by g_slots_lock */
};

struct iso_mapped {
    char *path;
    int fd;
    const uint8_t *data; /* [size] */
    size_t size;
    struct iso_file_identity identity;
    struct slot *slot; /* NULL for an empty file */
};

static _Atomic(struct slot *) g_slots; /* release by slot_new(), acquire by the handler */
static pthread_mutex_t g_slots_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t g_guard_once = PTHREAD_ONCE_INIT;
static struct sigaction g_previous; /* written before the handler is installed */
static uintptr_t g_page_bytes;
static int g_guard_errno; /* 0, or why the handler could not be installed */

/* End of the mapping that holds addr, or 0; marks it as faulted. Async-signal-safe. */
static uintptr_t claim_fault(uintptr_t addr)
{
    struct slot *s = atomic_load_explicit(&g_slots, memory_order_acquire);
    for (; s != NULL; s = s->next) {
        const unsigned seq = atomic_load_explicit(&s->seq, memory_order_acquire);
        const uintptr_t begin = atomic_load_explicit(&s->begin, memory_order_relaxed);
        const uintptr_t end = atomic_load_explicit(&s->end, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if ((seq & 1) != 0 || seq != atomic_load_explicit(&s->seq, memory_order_relaxed)) continue;
        if (addr < begin || addr >= end) continue;
        atomic_store_explicit(&s->faulted, true, memory_order_release);
        return end;
    }
    return 0;
}

/* By kill() or raise(). macOS has a positive code for that and may call it a fault all the same, with
 * the address of an older one. */
static bool was_sent(const siginfo_t *info)
{
    return info->si_code <= 0 || info->si_code == SI_USER;
}

static void chain_previous(int sig, siginfo_t *info, void *context)
{
    if ((g_previous.sa_flags & SA_SIGINFO) != 0) {
        g_previous.sa_sigaction(sig, info, context);
        return;
    }
    if (g_previous.sa_handler == SIG_IGN && was_sent(info)) return;
    if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) {
        g_previous.sa_handler(sig);
        return;
    }
    /* Back to the default. A real fault happens again on return, which keeps its address for the
     * core dump; a sent signal has to be sent again. */
    struct sigaction dfl;
    memset(&dfl, 0, sizeof(dfl));
    dfl.sa_handler = SIG_DFL;
    (void)sigaction(sig, &dfl, NULL);
    if (was_sent(info)) (void)raise(sig);
}

/* Puts zeros from the faulting page to the end of its mapping. A file that lost this page lost all
 * behind it, and one call instead of one signal per page keeps a reader of gigabytes moving.
 * mmap is a plain system call on Linux and macOS, hence safe here although POSIX does not list it.
 */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    const int saved_errno = errno;
    const uintptr_t addr = (uintptr_t)info->si_addr;
    const uintptr_t end = was_sent(info) ? 0 : claim_fault(addr);
    const uintptr_t page = addr & ~(g_page_bytes - 1);
    if (end == 0 || mmap((void *)page, end - page, PROT_READ,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        chain_previous(sig, info, context);
    }
    errno = saved_errno;
}

static void install_guard(void)
{
    g_page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction sa;
    memset(&sa, 0, sizeof(sa));
    sa.sa_sigaction = on_sigbus;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    (void)sigemptyset(&sa.sa_mask);
    if (sigaction(SIGBUS, NULL, &g_previous) != 0 || sigaction(SIGBUS, &sa, NULL) != 0) {
        g_guard_errno = errno;
    }
}

static void slot_set(struct slot *s, uintptr_t begin, uintptr_t end)
{
    const unsigned seq = atomic_load_explicit(&s->seq, memory_order_relaxed);
    atomic_store_explicit(&s->seq, seq + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&s->begin, begin, memory_order_relaxed);
    atomic_store_explicit(&s->end, end, memory_order_relaxed);
    atomic_store_explicit(&s->seq, seq + 2, memory_order_release);
}

static struct slot *slot_new(uintptr_t begin, uintptr_t end)
{
    (void)pthread_mutex_lock(&g_slots_lock);
    struct slot *head = atomic_load_explicit(&g_slots, memory_order_relaxed);
    struct slot *s = head;
    while (s != NULL && s->used) s = s->next;
    const bool fresh = s == NULL;
    if (fresh) {
        s = iso_xalloc(1, sizeof(*s));
        s->next = head;
    }
    s->used = true;
    atomic_store_explicit(&s->faulted, false, memory_order_relaxed);
    slot_set(s, begin, end);
    if (fresh) atomic_store_explicit(&g_slots, s, memory_order_release);
    (void)pthread_mutex_unlock(&g_slots_lock);
    return s;
}

static void slot_free(struct slot *s)
{
    (void)pthread_mutex_lock(&g_slots_lock);
    slot_set(s, 0, 0);
    s->used = false;
    (void)pthread_mutex_unlock(&g_slots_lock);
}

static int64_t mtime_ns(const struct stat *st)
{
#if defined(__APPLE__) /* one field name, not worth a file of its own */
    const struct timespec t = st->st_mtimespec;
#else
    const struct timespec t = st->st_mtim;
#endif
    return (int64_t)t.tv_sec * ISO_NS_PER_S + t.tv_nsec;
}

/* O_NONBLOCK: opening a pipe must fail as "not a regular file", not wait for a writer. */
static enum iso_err open_regular(struct iso_mapped *m)
{
    m->fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (m->fd < 0) ISO_FAIL(ISO_E_IO, "%s: %s", m->path, strerror(errno));
    struct stat st;
    if (fstat(m->fd, &st) != 0) ISO_FAIL(ISO_E_IO, "%s: %s", m->path, strerror(errno));
    if (S_ISDIR(st.st_mode)) ISO_FAIL(ISO_E_IO, "%s: is a directory, not a file", m->path);
    if (!S_ISREG(st.st_mode)) ISO_FAIL(ISO_E_IO, "%s: is not a regular file", m->path);
    m->identity = (struct iso_file_identity){(uint64_t)st.st_dev, (uint64_t)st.st_ino,
                                             (uint64_t)st.st_size, mtime_ns(&st)};
    if (m->identity.size_bytes > SIZE_MAX / 2) {
        ISO_FAIL(ISO_E_IO, "%s: %" PRIu64 " bytes do not fit the address space", m->path,
                 m->identity.size_bytes);
    }
    m->size = (size_t)m->identity.size_bytes;
    return ISO_OK;
}

static enum iso_err map(struct iso_mapped *m)
{
    static const uint8_t nothing[1];
    m->data = nothing;
    if (m->size == 0) return ISO_OK;
    void *p = mmap(NULL, m->size, PROT_READ, MAP_SHARED, m->fd, 0);
    if (p == MAP_FAILED) {
        ISO_FAIL(ISO_E_IO, "%s: cannot map %zu bytes: %s", m->path, m->size, strerror(errno));
    }
    m->data = p;
    /* Whole pages, as the kernel maps them: a vector load may reach the tail of the last one. */
    const uintptr_t begin = (uintptr_t)p;
    const uintptr_t len = (m->size + g_page_bytes - 1) & ~(g_page_bytes - 1);
    m->slot = slot_new(begin, begin + len);
    return ISO_OK;
}

enum iso_err iso_mapped_open(struct iso_mapped **out, const char *path)
{
    (void)pthread_once(&g_guard_once, install_guard);
    if (g_guard_errno != 0) {
        ISO_FAIL(ISO_E_IO, "cannot install the SIGBUS handler: %s", strerror(g_guard_errno));
    }
    struct iso_mapped *m = iso_xalloc(1, sizeof(*m));
    m->path = iso_xstrdup(path);
    m->fd = -1;
    enum iso_err err = open_regular(m);
    if (err == ISO_OK) err = map(m);
    if (err != ISO_OK) {
        iso_mapped_close(m);
        return err;
    }
    *out = m;
    return ISO_OK;
}

void iso_mapped_close(struct iso_mapped *m)
{
    if (m == NULL) return;
    if (m->slot != NULL) {
        slot_free(m->slot);
        (void)munmap((void *)(uintptr_t)m->data, m->size);
    }
    if (m->fd >= 0) (void)close(m->fd);
    free(m->path);
    free(m);
}

const uint8_t *iso_mapped_data(const struct iso_mapped *m)
{
    return m->data;
}

size_t iso_mapped_size(const struct iso_mapped *m)
{
    return m->size;
}

const char *iso_mapped_path(const struct iso_mapped *m)
{
    return m->path;
}

struct iso_file_identity iso_mapped_identity(const struct iso_mapped *m)
{
    return m->identity;
}

enum iso_err iso_mapped_check(const struct iso_mapped *m)
{
    struct stat st;
    if (fstat(m->fd, &st) != 0) ISO_FAIL(ISO_E_IO, "%s: %s", m->path, strerror(errno));
    const uint64_t was = m->identity.size_bytes;
    const uint64_t now = (uint64_t)st.st_size;
    if (now < was) {
        ISO_FAIL(ISO_E_IO,
                 "%s: shrank while it was in use: %" PRIu64 " bytes when opened, %" PRIu64 " now",
                 m->path, was, now);
    }
    if (m->slot != NULL && atomic_load_explicit(&m->slot->faulted, memory_order_acquire)) {
        ISO_FAIL(ISO_E_IO,
                 "%s: a page could not be read while it was in use (read error, or the file was"
                 " shortened for a time): %" PRIu64 " bytes when opened, %" PRIu64 " now",
                 m->path, was, now);
    }
    if (now != was || mtime_ns(&st) != m->identity.mtime_ns) {
        ISO_FAIL(ISO_E_IO,
                 "%s: was written while it was in use: %" PRIu64 " bytes when opened, %" PRIu64
                 " now; load it again",
                 m->path, was, now);
    }
    return ISO_OK;
}
