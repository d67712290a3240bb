/* SPDX-License-Identifier: MIT
 * refused.h - binding tiny models on one device; what must be refused, and by which name.
 */
#ifndef ISO_TESTS_MODEL_REFUSED_H
#define ISO_TESTS_MODEL_REFUSED_H

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/model.h"
#include "model/tiny_model.h"

static struct iso_device *g_dev; /* two threads, for all tests */

static inline int open_device(void **state)
{
    (void)state;
    tiny_ok(iso_device_cpu_open(&g_dev, "auto", 2));
    return 0;
}

static inline int close_device(void **state)
{
    (void)state;
    g_dev->vt->close(g_dev);
    return 0;
}

static inline void expect(enum iso_err err, enum iso_err want, const char *const *text, size_t n)
{
    if (err != want) {
        fail_msg("got %d (%s), want %s %s", (int)err, err ? iso_err_detail() : "",
                 iso_err_str(want), text[0]);
    }
    for (size_t i = 0; i < n && text[i]; i++) {
        if (strstr(iso_err_message(), text[i]) == NULL) {
            fail_msg("\"%s\" is not in \"%s\"", text[i], iso_err_message());
        }
    }
    /* For people: without file and line, also when another thread found it. */
    if (err != ISO_OK) assert_null(strstr(iso_err_message(), ".c:"));
}

/* Saves, opens and binds; the patched bytes are already in m. */
static inline enum iso_err bind(struct tiny_model *m)
{
    const char *path = tiny_path("family");
    tiny_model_save(m, path);
    struct iso_gguf *g = NULL;
    enum iso_err err = iso_gguf_open(&g, path);
    (void)unlink(path);
    tiny_ok(err);
    struct iso_model *model = NULL;
    err = iso_model_open(&model, g, g_dev, NULL, NULL);
    assert_int_equal(model != NULL, err == ISO_OK);
    iso_model_close(model);
    iso_gguf_close(g);
    return err;
}

static inline enum iso_err bind_spec(const struct tiny_spec *s)
{
    struct tiny_model m;
    tiny_model_init(&m, s);
    const enum iso_err err = bind(&m);
    tiny_model_deinit(&m);
    return err;
}

/* A tiny model of a family without one key or tensor and with something more: refused, naming text. */
struct refused_case {
    const char *arch, *without;
    void (*extra)(struct tiny_model *m);
    enum iso_err want;
    const char *text[2];
};

static inline void expect_refused(const struct refused_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct refused_case *k = &cases[i];
        /* The key that stands in for another must not be left out as well. */
        struct tiny_spec s = tiny_spec(k->arch);
        struct tiny_model m;
        s.without = k->without;
        tiny_model_init(&m, &s);
        s.without = NULL;
        if (k->extra) k->extra(&m);
        expect(bind(&m), k->want, k->text, 2);
        tiny_model_deinit(&m);
    }
}

#endif
