/* SPDX-License-Identifier: MIT
 * vectors.h - reads the cases that tests/vectors/make_vectors.py computes from the specification.
 *
 * A file is a list of cases:
 *     case OP why it is there
 *     text NAME value
 *     data NAME count        then count words in hexadecimal: integers, or the bits of f32 numbers
 *     end
 * Everything is in this header because tests of several areas use it and an area links only the files of
 * its own folder.
 */
#ifndef ISO_TESTS_VECTORS_H
#define ISO_TESTS_VECTORS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VECTOR_ITEMS 16

struct vector_item {
    char name[24], text[24];
    uint32_t *word; /* [n] */
    size_t n;
};

struct vector_case {
    char op[24], why[128];
    struct vector_item item[VECTOR_ITEMS];
    size_t n_items;
};

static inline FILE *vectors_open(const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "tests/vectors/%s", name);
    FILE *f = fopen(path, "r");
    if (f == NULL) fail_msg("%s cannot be read: run from the project's root", path);
    return f;
}

static inline void vector_free(struct vector_case *c)
{
    for (size_t i = 0; i < c->n_items; i++) free(c->item[i].word);
    c->n_items = 0;
}

static inline struct vector_item *vector_add(struct vector_case *c)
{
    assert_true(c->n_items < VECTOR_ITEMS);
    struct vector_item *v = &c->item[c->n_items++];
    *v = (struct vector_item){.n = 0};
    return v;
}

/* The next case into c, which must be empty; 0 at the end of the file. */
static inline int vector_next(struct vector_case *c, FILE *f)
{
    char line[256], word[24];
    *c = (struct vector_case){.n_items = 0};
    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '#' || sscanf(line, "%23s", word) != 1) continue;
        if (strcmp(word, "end") == 0) return 1;
        if (strcmp(word, "case") == 0) {
            assert_int_equal(sscanf(line, "case %23s %127[^\n]", c->op, c->why), 2);
        } else if (strcmp(word, "text") == 0) {
            struct vector_item *v = vector_add(c);
            assert_int_equal(sscanf(line, "text %23s %23s", v->name, v->text), 2);
        } else {
            struct vector_item *v = vector_add(c);
            if (sscanf(line, "data %23s %zu", v->name, &v->n) != 2) fail_msg("not understood: %s", line);
            v->word = calloc(v->n + 1, sizeof(*v->word));
            assert_non_null(v->word);
            for (size_t i = 0; i < v->n; i++) assert_int_equal(fscanf(f, "%x", &v->word[i]), 1);
        }
    }
    return 0;
}

static inline const struct vector_item *vector_find(const struct vector_case *c, const char *name)
{
    for (size_t i = 0; i < c->n_items; i++) {
        if (strcmp(c->item[i].name, name) == 0) return &c->item[i];
    }
    return NULL;
}

/* An item that must be there. */
static inline const struct vector_item *vector_get(const struct vector_case *c, const char *name)
{
    const struct vector_item *v = vector_find(c, name);
    if (v == NULL) fail_msg("%s, %s: no %s", c->op, c->why, name);
    return v;
}

static inline float vector_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float vector_f32(const struct vector_case *c, const char *name)
{
    return vector_float(vector_get(c, name)->word[0]);
}

/* Fails the test unless got [n words] are the words of an item. */
static inline void vector_expect(const struct vector_case *c, const char *name, const void *got, size_t n,
                                 const char *who)
{
    const struct vector_item *want = vector_get(c, name);
    assert_int_equal(want->n, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, (const uint8_t *)got + 4 * i, sizeof(u));
        if (u == want->word[i]) continue;
        fail_msg("%s: %s, %s: %s[%zu] is 0x%08x (%a), want 0x%08x (%a)", who, c->op, c->why, name, i, (unsigned)u,
                 (double)vector_float(u), (unsigned)want->word[i], (double)vector_float(want->word[i]));
    }
}

#endif
