/* SPDX-License-Identifier: MIT
 * test_mapped.c - files that shrink or change while they are mapped, and the SIGBUS handler's
 * manners.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "format/gguf_writer.h"
#include "format/mapped.h"

#define FILE_BYTES ((size_t)1 << 20)
#define N_READERS 4

static const char *write_ones(const char *name)
{
    const char *path = test_path(name);
    void *p = NULL;
    assert_int_equal(iso_mem_alloc(&p, FILE_BYTES, 1, "test file"), ISO_OK);
    memset(p, 1, FILE_BYTES);
    test_write_file(path, p, FILE_BYTES);
    iso_mem_free(p);
    return path;
}

static struct iso_mapped *open_ok(const char *path)
{
    struct iso_mapped *m = NULL;
    if (iso_mapped_open(&m, path) != ISO_OK) fail_msg("%s", iso_err_detail());
    return m;
}

static void assert_check_fails(const struct iso_mapped *m, const char *text)
{
    assert_int_equal(iso_mapped_check(m), ISO_E_IO);
    if (strstr(iso_err_message(), text) == NULL ||
        strstr(iso_err_message(), iso_mapped_path(m)) == NULL) {
        fail_msg("wanted \"%s\": %s", text, iso_err_message());
    }
}

static uint8_t touch(const struct iso_mapped *m, size_t at)
{
    return *(const volatile uint8_t *)(iso_mapped_data(m) + at);
}

/* A fault outside of all iso_mapped files: a page behind the end of another mapped file. */
static void fault_elsewhere(const char *path)
{
    const int fd = open(path, O_RDWR);
    const volatile uint8_t *p = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || p == MAP_FAILED || ftruncate(fd, 0) != 0) _exit(99);
    _exit(p[FILE_BYTES / 2] == 0 ? 98 : 97); /* not reached: 98 would be a swallowed fault */
}

static void exit_42(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)context;
    _exit(info->si_addr != NULL ? 42 : 41);
}

static void exit_43(int sig)
{
    (void)sig;
    _exit(43);
}

static void install(void (*plain)(int), void (*full)(int, siginfo_t *, void *))
{
    struct sigaction sa;
    memset(&sa, 0, sizeof(sa));
    if (full != NULL) {
        sa.sa_sigaction = full;
        sa.sa_flags = SA_SIGINFO;
    } else {
        sa.sa_handler = plain;
    }
    if (sigaction(SIGBUS, &sa, NULL) != 0) _exit(96);
}

enum then { FAULT_ELSEWHERE, SEND_SIGNAL };

/* In a child: installs a handler, opens a file (which puts the guard over it), shrinks the file and
 * reads it (which must be answered), then does what the guard must pass on. Returns the wait
 * status. */
static int in_child(void (*plain)(int), void (*full)(int, siginfo_t *, void *), enum then then)
{
    const char *mine = write_ones("mine.bin");
    const char *other = write_ones("other.bin");
    (void)fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        install(plain, full);
        struct iso_mapped *m = NULL;
        if (iso_mapped_open(&m, mine) != ISO_OK || truncate(mine, 0) != 0) _exit(95);
        if (touch(m, 5000) != 0 || iso_mapped_check(m) != ISO_E_IO) _exit(94);
        if (then == FAULT_ELSEWHERE) fault_elsewhere(other);
        (void)raise(SIGBUS);
        _exit(7);
    }
    int status = 0;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* First of all tests: a process installs the guard once. */
static void other_faults_go_to_the_handler_before(void **state)
{
    (void)state;
    int status = in_child(NULL, exit_42, FAULT_ELSEWHERE);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    status = in_child(exit_43, NULL, FAULT_ELSEWHERE);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 43);
    status = in_child(exit_43, NULL, SEND_SIGNAL);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 43);
}

static void other_faults_kill_by_default(void **state)
{
    (void)state;
    int status = in_child(SIG_DFL, NULL, FAULT_ELSEWHERE);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    status = in_child(SIG_DFL, NULL, SEND_SIGNAL);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    status = in_child(SIG_IGN, NULL, FAULT_ELSEWHERE); /* a fault cannot be ignored */
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    status = in_child(SIG_IGN, NULL, SEND_SIGNAL);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
}

/* cmocka puts its own handlers around each test; the guard, which a process installs once, goes on
 * top of them again. */
static void guard_on(void)
{
    static struct sigaction guard;
    if (guard.sa_sigaction == NULL) {
        iso_mapped_close(open_ok(write_ones("guard.bin")));
        assert_int_equal(sigaction(SIGBUS, NULL, &guard), 0);
    }
    assert_int_equal(sigaction(SIGBUS, &guard, NULL), 0);
}

/* L8. */
static void shrinking_is_an_error_not_a_death(void **state)
{
    (void)state;
    guard_on();
    const char *path = write_ones("shrink.bin");
    struct iso_mapped *m = open_ok(path);
    assert_int_equal(iso_mapped_size(m), FILE_BYTES);
    assert_int_equal(touch(m, FILE_BYTES - 1), 1);
    assert_int_equal(iso_mapped_check(m), ISO_OK);
    assert_int_equal(truncate(path, 10000), 0);
    assert_int_equal(touch(m, 9999), 1);
    assert_int_equal(touch(m, FILE_BYTES / 2), 0); /* SIGBUS without the guard */
    assert_int_equal(touch(m, 200000), 0);         /* a page before the first fault */
    assert_int_equal(touch(m, FILE_BYTES - 1), 0);
    assert_int_equal(touch(m, 9999), 1); /* what is left stays readable */
    assert_check_fails(m, "1048576 bytes when opened, 10000 now");
    iso_mapped_close(m);
}

static void shrinking_is_seen_without_a_fault(void **state)
{
    (void)state;
    guard_on();
    const char *path = write_ones("quiet.bin");
    struct iso_mapped *m = open_ok(path);
    assert_int_equal(truncate(path, (off_t)FILE_BYTES - 1), 0);
    assert_check_fails(m, "shrank while it was in use: 1048576 bytes when opened, 1048575 now");
    iso_mapped_close(m);
}

/* The size is right again, but zeros were read: the flag must outlive the file's state. */
static void a_fault_is_remembered(void **state)
{
    (void)state;
    guard_on();
    const char *path = write_ones("regrow.bin");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    struct iso_mapped *m = open_ok(path);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(touch(m, 70000), 0);
    (void)write_ones("regrow.bin");
#if defined(__APPLE__)
    const struct timespec times[2] = {{0, UTIME_OMIT}, st.st_mtimespec};
#else
    const struct timespec times[2] = {{0, UTIME_OMIT}, st.st_mtim};
#endif
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_check_fails(m, "a page could not be read");
    iso_mapped_close(m);
    m = open_ok(path); /* takes over the guard's slot, not its flag */
    assert_int_equal(touch(m, 70000), 1);
    assert_int_equal(iso_mapped_check(m), ISO_OK);
    iso_mapped_close(m);
}

struct reader {
    const struct iso_mapped *m;
    _Atomic bool started;
    size_t first; /* this reader's first byte; it strides by pages */
    pthread_t thread;
};

/* Reads round and round until it sees a zero. */
static void *read_until_zero(void *arg)
{
    struct reader *r = arg;
    for (;;) {
        for (size_t at = r->first; at < FILE_BYTES; at += 4096) {
            if (touch(r->m, at) == 0) return NULL;
        }
        atomic_store_explicit(&r->started, true, memory_order_release);
    }
}

static void other_threads_survive(void **state)
{
    (void)state;
    guard_on();
    const char *path = write_ones("threads.bin");
    struct iso_mapped *m = open_ok(path);
    struct reader readers[N_READERS];
    for (size_t i = 0; i < N_READERS; i++) {
        readers[i].m = m;
        readers[i].first = i * 111;
        atomic_init(&readers[i].started, false);
        assert_int_equal(pthread_create(&readers[i].thread, NULL, read_until_zero, &readers[i]), 0);
    }
    const struct timespec ms = {0, 1000000};
    for (size_t i = 0; i < N_READERS; i++) {
        while (!atomic_load_explicit(&readers[i].started, memory_order_acquire)) {
            (void)nanosleep(&ms, NULL);
        }
    }
    assert_int_equal(truncate(path, 8192), 0);
    for (size_t i = 0; i < N_READERS; i++) {
        assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
    }
    assert_check_fails(m, "1048576 bytes when opened, 8192 now");
    iso_mapped_close(m);
}

/* Several files at a time: only the one that shrank fails. */
static void only_the_shrunk_file_fails(void **state)
{
    (void)state;
    guard_on();
    struct iso_mapped *a = open_ok(write_ones("a.bin"));
    struct iso_mapped *b = open_ok(write_ones("b.bin"));
    struct iso_mapped *c = open_ok(write_ones("c.bin"));
    assert_int_equal(truncate(test_path("b.bin"), 0), 0);
    assert_int_equal(touch(b, 0), 0);
    assert_int_equal(touch(a, FILE_BYTES - 1), 1);
    assert_int_equal(touch(c, FILE_BYTES - 1), 1);
    assert_int_equal(iso_mapped_check(a), ISO_OK);
    assert_int_equal(iso_mapped_check(c), ISO_OK);
    assert_check_fails(b, "1048576 bytes when opened, 0 now");
    iso_mapped_close(a);
    iso_mapped_close(b);
    iso_mapped_close(c);
}

static void writing_in_place_is_seen(void **state)
{
    (void)state;
    guard_on();
    const char *path = write_ones("written.bin");
    const struct timespec old[2] = {{1000, 0}, {1000, 5}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    struct iso_mapped *m = open_ok(path);
    assert_int_equal(iso_mapped_identity(m).mtime_ns, 1000000000005);
    const int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 500), 1);
    assert_int_equal(close(fd), 0);
    assert_check_fails(m, "was written while it was in use");
    iso_mapped_close(m);
}

static void replacing_by_rename_is_fine(void **state)
{
    (void)state;
    guard_on();
    const char *path = write_ones("kept.bin");
    struct iso_mapped *m = open_ok(path);
    test_write_file(test_path("new.bin"), "new", 3);
    assert_int_equal(rename(test_path("new.bin"), path), 0);
    assert_int_equal(touch(m, FILE_BYTES - 1), 1);
    assert_int_equal(iso_mapped_check(m), ISO_OK);
    iso_mapped_close(m);
}

static void assert_no_open(const char *path, const char *text)
{
    struct iso_mapped *m = NULL;
    assert_int_equal(iso_mapped_open(&m, path), ISO_E_IO);
    assert_null(m);
    if (strstr(iso_err_message(), text) == NULL) fail_msg("%s", iso_err_message());
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    assert_no_open(test_path("absent"), "absent: No such file or directory");
    assert_no_open(test_folder(), "is a directory");
    assert_int_equal(mkfifo(test_path("pipe"), 0600), 0);
    assert_no_open(test_path("pipe"), "is not a regular file"); /* and does not wait for a writer */
    assert_no_open("/dev/null", "is not a regular file");
    test_write_file(test_path("empty"), "", 0);
    struct iso_mapped *m = open_ok(test_path("empty"));
    assert_non_null(iso_mapped_data(m));
    assert_int_equal(iso_mapped_size(m), 0);
    assert_int_equal(iso_mapped_check(m), ISO_OK);
    iso_mapped_close(m);
    iso_mapped_close(NULL);
}

/* The same through the reader: the model's file shrinks under its tensors and its strings. */
static void a_shrunk_model_fails_its_check(void **state)
{
    (void)state;
    guard_on();
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_writer_str(&w, "general.name", "shrinks");
    gguf_writer_tensor(&w, "t", ISO_TYPE_F32, 16384, 2, 0x55);
    const char *path = test_path("model.gguf");
    gguf_writer_save(&w, path);
    gguf_writer_deinit(&w);
    struct iso_gguf *g = NULL;
    assert_int_equal(iso_gguf_open(&g, path), ISO_OK);
    const volatile uint8_t *data = iso_gguf_find(g, "t")->data;
    assert_int_equal(data[0], 0x55);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(data[100000], 0);
    assert_int_equal(data[0], 0);
    struct iso_gguf_str s;
    assert_int_equal(iso_gguf_str(&s, g, "general.name"), ISO_OK);
    assert_int_equal(*(const volatile char *)s.s, 0);
    assert_int_equal(iso_gguf_check(g), ISO_E_IO);
    assert_non_null(strstr(iso_err_message(), path));
    assert_non_null(strstr(iso_err_message(), "131200 bytes when opened, 0 now"));
    iso_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_faults_go_to_the_handler_before),
        cmocka_unit_test(other_faults_kill_by_default),
        cmocka_unit_test(shrinking_is_an_error_not_a_death),
        cmocka_unit_test(shrinking_is_seen_without_a_fault),
        cmocka_unit_test(a_fault_is_remembered),
        cmocka_unit_test(other_threads_survive),
        cmocka_unit_test(only_the_shrunk_file_fails),
        cmocka_unit_test(writing_in_place_is_seen),
        cmocka_unit_test(replacing_by_rename_is_fine),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(a_shrunk_model_fails_its_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
