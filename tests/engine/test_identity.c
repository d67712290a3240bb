/* SPDX-License-Identifier: MIT
 * test_identity.c - what two engines must have in common, and the cache of the weights' digest. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/tools.h"

static char g_cache[256]; /* XDG_CACHE_HOME of this program */

static int make_cache(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(g_cache, sizeof(g_cache), "%s/isobit-cache-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(g_cache) == NULL || setenv("XDG_CACHE_HOME", g_cache, 1) != 0;
}

/* Path of the cached digest of the only model, "" when there is none; removes it when told to. */
static const char *cached(bool remove)
{
    static char path[600];
    char dir[300];
    path[0] = '\0';
    (void)snprintf(dir, sizeof(dir), "%s/isobit", g_cache);
    DIR *d = opendir(dir);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (e->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (remove) (void)unlink(path);
    }
    if (d) (void)closedir(d);
    return path;
}

static int remove_cache(void **state)
{
    (void)state;
    (void)cached(true);
    char dir[300];
    (void)snprintf(dir, sizeof(dir), "%s/isobit", g_cache);
    (void)rmdir(dir);
    return rmdir(g_cache);
}

static struct iso_identity identity(iso_engine *e)
{
    struct iso_identity id;
    tools_ok(iso_engine_identity(&id, e, NULL));
    return id;
}

static bool same(const struct iso_digest *a, const struct iso_digest *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* K10: each difference shows in the digest that is responsible for it, and in no other. */
static void differences_show(void **state)
{
    (void)state;
    const struct tiny_spec base = tiny_spec("gemma3");
    struct tiny_spec other[4] = {base, base, base, base};
    other[0].seed = 8;     /* other weights */
    other[1].window = 128; /* context, and the graph */
    other[2].n_heads = 4;  /* other shapes */
    other[3].n_ctx = 2048; /* trained for another context */
    iso_engine *e = tools_engine_of(&base, NULL);
    iso_engine *again =
        tools_engine_of(&base, &(struct iso_engine_options){.n_ctx = 64, .isa = "ref"});
    const struct iso_identity id = identity(e), id2 = identity(again);
    assert_string_equal(id.arithmetic, "exact-1");
    assert_memory_equal(&id, &id2, sizeof(id));
    for (size_t i = 0; i < ISO_COUNT(other); i++) {
        iso_engine *x = tools_engine_of(&other[i], NULL);
        const struct iso_identity o = identity(x);
        assert_int_equal(same(&id.weights, &o.weights), i == 3);
        assert_int_equal(same(&id.context, &o.context), i == 0 || i == 2);
        assert_true(same(&id.page_format, &o.page_format));
        iso_engine_close(x);
    }
    struct tiny_spec heads = base;
    heads.n_kv_heads = 2;
    iso_engine *x = tools_engine_of(&heads, NULL);
    const struct iso_identity o = identity(x);
    assert_false(same(&id.page_format, &o.page_format));
    iso_engine_close(x);
    iso_engine_close(e);
    iso_engine_close(again);
}

static bool count(void *arg, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    (*(int *)arg)++;
    return false;
}

static bool stop(void *arg, uint64_t done, uint64_t total)
{
    (void)arg, (void)done, (void)total;
    return true;
}

static iso_engine *open_at(const char *path)
{
    iso_engine *e = NULL;
    tools_ok(iso_engine_open(&e, &(struct iso_engine_options){
                                     .model_path = path, .n_threads = 1, .no_tokenizer = true}));
    return e;
}

/* Identity of the file with a fresh engine; *calls counts progress: 0 when the cache was believed.
 */
static struct iso_identity fresh(const char *path, int *calls)
{
    struct iso_identity id;
    iso_engine *e = open_at(path);
    *calls = 0;
    tools_ok(iso_engine_identity(&id, e, &(struct iso_progress){count, calls}));
    iso_engine_close(e);
    return id;
}

static void the_cache_is_believed_only_when_it_is_safe(void **state)
{
    (void)state;
    const struct tiny_spec spec = tiny_spec("llama");
    struct tiny_model m;
    const char *path = tiny_path("identity");
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, path);
    (void)cached(true);
    iso_engine *e = open_at(path);
    struct iso_identity id;
    tools_expect(iso_engine_identity(&id, e, &(struct iso_progress){stop, NULL}), ISO_E_CANCELLED,
                 "weights digest stopped");
    iso_engine_close(e);
    assert_string_equal(cached(false), ""); /* nothing half done */
    int calls = 0;
    const struct iso_identity want = fresh(path, &calls);
    assert_true(calls > 0);
    struct stat st;
    assert_int_equal(stat(cached(false), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    struct iso_identity got = fresh(path, &calls);
    assert_int_equal(calls, 0);
    assert_true(same(&want.weights, &got.weights));
    /* Writable by others: not believed. */
    assert_int_equal(chmod(cached(false), 0622), 0);
    got = fresh(path, &calls);
    assert_true(calls > 0 && same(&want.weights, &got.weights));
    /* Cut, or too long: not believed. */
    assert_int_equal(chmod(cached(false), 0600), 0);
    assert_int_equal(truncate(cached(false), st.st_size - 1), 0);
    got = fresh(path, &calls);
    assert_true(calls > 0 && same(&want.weights, &got.weights));
    /* The file changed: another stamp. */
    tiny_at(&m, "blk.0.attn_k.weight", 0, 5)[0] ^= 1;
    tiny_model_save(&m, path);
    got = fresh(path, &calls);
    assert_true(calls > 0 && !same(&want.weights, &got.weights));
    tiny_model_deinit(&m);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_show),
        cmocka_unit_test(the_cache_is_believed_only_when_it_is_safe),
    };
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
