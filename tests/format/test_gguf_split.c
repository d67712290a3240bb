/* SPDX-License-Identifier: MIT
 * test_gguf_split.c - split models: three parts together, and each way in which they can disagree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "format/gguf_walk.h"
#include "format/gguf_writer.h"

#define N_PARTS 3

/* What the parts say; a test changes one thing. */
struct split {
    int64_t no[N_PARTS];
    int64_t count[N_PARTS];
    int64_t total; /* below 0: no such key */
    const char *tensor[N_PARTS];
};

static const struct split right = {{0, 1, 2}, {3, 3, 3}, 3, {"t0", "t1", "t2"}};

static const char *part_name(unsigned i)
{
    static const char *const names[N_PARTS] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                               "m-00003-of-00003.gguf"};
    return names[i];
}

static void write_split(const struct split *s)
{
    for (unsigned i = 0; i < N_PARTS; i++) {
        struct gguf_writer w;
        gguf_writer_init(&w);
        if (i == 0) gguf_writer_str(&w, "general.architecture", "llama");
        if (i == 2) { /* each part has its own alignment */
            gguf_writer_int(&w, "general.alignment", ISO_GGUF_U32, 4096);
            w.alignment = 4096;
        }
        if (s->no[i] >= 0) gguf_writer_int(&w, "split.no", ISO_GGUF_U16, s->no[i]);
        if (s->count[i] >= 0) gguf_writer_int(&w, "split.count", ISO_GGUF_U16, s->count[i]);
        if (s->total >= 0) gguf_writer_int(&w, "split.tensors.count", ISO_GGUF_I32, s->total);
        gguf_writer_tensor(&w, s->tensor[i], ISO_TYPE_Q8_0, 32, 2, (uint8_t)(0x10 + i));
        gguf_writer_save(&w, test_path(part_name(i)));
        gguf_writer_deinit(&w);
    }
}

static void assert_refused(const char *path, enum iso_err want, const char *text)
{
    struct iso_gguf *g = NULL;
    const enum iso_err got = iso_gguf_open(&g, path);
    if (got != want || strstr(iso_err_message(), text) == NULL) {
        fail_msg("wanted \"%s\" with \"%s\", got \"%s\": %s", iso_err_str(want), text,
                 iso_err_str(got), iso_err_message());
    }
    assert_null(g);
}

static void three_parts_open_as_one(void **state)
{
    (void)state;
    write_split(&right);
    struct iso_gguf *g = NULL;
    if (iso_gguf_open(&g, test_path(part_name(0))) != ISO_OK) fail_msg("%s", iso_err_detail());
    assert_int_equal(iso_gguf_n_tensors(g), 3);
    for (unsigned i = 0; i < N_PARTS; i++) {
        const struct iso_gguf_tensor *t = iso_gguf_find(g, right.tensor[i]);
        assert_ptr_equal(t, iso_gguf_tensor(g, i));
        assert_int_equal(t->data[0], 0x10 + i);
        assert_int_equal(t->data[t->size_bytes - 1], 0x10 + i);
    }
    assert_int_equal(iso_gguf_n_keys(g), 4); /* those of the first part */
    size_t bytes = 0;
    for (unsigned i = 0; i < N_PARTS; i++) {
        FILE *f = fopen(test_path(part_name(i)), "rb");
        assert_non_null(f);
        assert_int_equal(fseek(f, 0, SEEK_END), 0);
        bytes += (size_t)ftell(f);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(iso_gguf_file_bytes(g), bytes);
    const char *comma = strchr(iso_gguf_stamp(g), ',');
    assert_non_null(comma);
    assert_non_null(strchr(comma + 1, ','));
    (void)gguf_walk(g);
    assert_int_equal(truncate(test_path(part_name(1)), 10), 0);
    assert_int_equal(iso_gguf_check(g), ISO_E_IO);
    assert_non_null(strstr(iso_err_message(), part_name(1)));
    iso_gguf_close(g);
}

static void a_missing_part_is_named(void **state)
{
    (void)state;
    write_split(&right);
    assert_int_equal(unlink(test_path(part_name(1))), 0);
    assert_refused(test_path(part_name(0)), ISO_E_IO,
                   "m-00002-of-00003.gguf: No such file or directory (part 2 of 3;");
}

static void a_later_part_names_the_first(void **state)
{
    (void)state;
    write_split(&right);
    assert_refused(test_path(part_name(1)), ISO_E_FORMAT, "is part 2 of 3; open the first one, ");
    assert_refused(test_path(part_name(1)), ISO_E_FORMAT, "m-00001-of-00003.gguf");
}

static void names_and_keys_must_agree(void **state)
{
    (void)state;
    write_split(&right);
    const char *renamed = test_path("renamed.gguf");
    assert_int_equal(rename(test_path(part_name(0)), renamed), 0);
    assert_refused(renamed, ISO_E_FORMAT, "holds part 1 of 3 of a split model but is not named");
    const char *other = test_path("m-00001-of-00002.gguf");
    assert_int_equal(rename(renamed, other), 0);
    assert_refused(other, ISO_E_FORMAT, "give the parts their names back");
    assert_int_equal(unlink(other), 0);
}

static void wrong_keys_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct split s;
        const char *text;
    } cases[] = {
        {{{0, 2, 1}, {3, 3, 3}, 3, {"t0", "t1", "t2"}},
         "m-00002-of-00003.gguf: split.no is 2 and split.count 3, the name says 1 and 3"},
        {{{0, 1, 2}, {3, 3, 4}, 3, {"t0", "t1", "t2"}},
         "m-00003-of-00003.gguf: split.no is 2 and split.count 4, the name says 2 and 3"},
        {{{0, 1, -1}, {3, 3, 3}, 3, {"t0", "t1", "t2"}}, "split.no is -1 and split.count 3"},
        {{{0, 1, 2}, {3, -1, 3}, 3, {"t0", "t1", "t2"}}, "split.no is 1 and split.count 0"},
        {{{0, 1, 2}, {3, 3, 3}, 4, {"t0", "t1", "t2"}},
         "split.tensors.count is 4 but the 3 parts hold 3 tensors"},
        {{{0, 1, 2}, {3, 3, 3}, -1, {"t0", "t1", "t2"}}, "'split.tensors.count' is missing"},
        {{{0, 1, 2}, {3, 3, 3}, 3, {"t0", "t1", "t0"}},
         "m-00003-of-00003.gguf: tensor 't0' is there twice, as number 0 and 2; first in "},
        {{{0, 1, 2}, {-1, 3, 3}, 3, {"t0", "t1", "t2"}},
         "is named as part 1 of 3, but its key split.count says 0"},
        {{{0, 1, 2}, {1, 3, 3}, 3, {"t0", "t1", "t2"}}, "its key split.count says 1"},
        {{{3, 1, 2}, {3, 3, 3}, 3, {"t0", "t1", "t2"}}, "split.no is 3 but split.count is 3"},
        {{{1, 1, 2}, {3, 3, 3}, 3, {"t0", "t1", "t2"}}, "holds part 2 of 3"},
    };
    for (size_t i = 0; i < ISO_COUNT(cases); i++) {
        write_split(&cases[i].s);
        assert_refused(test_path(part_name(0)), ISO_E_FORMAT, cases[i].text);
    }
    struct split s = right;
    s.count[0] = ISO_GGUF_MAX_SPLITS + 1;
    write_split(&s);
    assert_refused(test_path(part_name(0)), ISO_E_LIMIT, "split.count is 1025, the limit is 1024");
    write_split(&right);
    assert_int_equal(truncate(test_path(part_name(2)), 4100), 0);
    assert_refused(test_path(part_name(0)), ISO_E_FORMAT, "m-00003-of-00003.gguf: tensor 't2'");
}

/* Some models come as the only part of one, with the keys or without. */
static void one_of_one_opens(void **state)
{
    (void)state;
    const char *path = test_path("m-00001-of-00001.gguf");
    for (int with_keys = 0; with_keys < 2; with_keys++) {
        struct gguf_writer w;
        gguf_writer_init(&w);
        if (with_keys) {
            gguf_writer_int(&w, "split.no", ISO_GGUF_U16, 0);
            gguf_writer_int(&w, "split.count", ISO_GGUF_U16, 1);
        }
        gguf_writer_tensor(&w, "t", ISO_TYPE_F32, 4, 0, 1);
        gguf_writer_save(&w, path);
        struct iso_gguf *g = NULL;
        if (iso_gguf_open(&g, path) != ISO_OK) fail_msg("%s", iso_err_detail());
        assert_int_equal(iso_gguf_n_tensors(g), 1);
        iso_gguf_close(g);
        gguf_writer_deinit(&w);
    }
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_writer_int(&w, "split.no", ISO_GGUF_U16, 2);
    gguf_writer_save(&w, path);
    gguf_writer_deinit(&w);
    assert_refused(path, ISO_E_FORMAT, "split.no is 2 but split.count is 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_parts_open_as_one),      cmocka_unit_test(a_missing_part_is_named),
        cmocka_unit_test(a_later_part_names_the_first), cmocka_unit_test(names_and_keys_must_agree),
        cmocka_unit_test(wrong_keys_are_refused),       cmocka_unit_test(one_of_one_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
