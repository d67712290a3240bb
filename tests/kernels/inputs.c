/* SPDX-License-Identifier: MIT
 * inputs.c - makes the inputs of the element-wise kernel tests. */
#include "kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"

const char *input_kind_name(enum input_kind kind)
{
    static const char *const names[INPUT_KINDS] = {
        "ordinary", "outlier", "zero", "tiny", "subnormal", "mixed",
        "large",    "ties",    "inf",  "nan",  "huge",
    };
    return names[kind];
}

static float fill_one(struct check_rng *r, enum input_kind kind)
{
    const float x = check_f32(r);
    switch (kind) {
    case INPUT_ZERO:
        return x < 0 ? -0.0f : 0.0f;
    case INPUT_TINY:
        return ldexpf(x,
                      (int)(check_next(r) % 2 ? check_int(r, -30, -26) : check_int(r, -62, -58)));
    case INPUT_SUBNORMAL:
        return ldexpf(x, -127);
    case INPUT_MIXED:
        return ldexpf(x, (int)check_int(r, -120, 20));
    case INPUT_LARGE:
        return ldexpf(x, (int)check_int(r, 0, 55));
    case INPUT_TIES:
        return (float)check_int(r, -4094, 4094) * 0x1p-12f;
    default:
        return x * 4;
    }
}

void input_fill(struct check_rng *r, float *x, size_t n, enum input_kind kind)
{
    for (size_t i = 0; i < n; i++) x[i] = fill_one(r, kind);
    const size_t at = (size_t)check_int(r, 0, (int64_t)n - 1);
    switch (kind) {
    case INPUT_OUTLIER:
        x[at] = 3000.0f;
        break;
    case INPUT_TIES:
        x[at] = 2047.0f / 2048.0f;
        break;
    case INPUT_INF:
        x[at] = check_next(r) % 2 ? INFINITY : -INFINITY;
        break;
    case INPUT_NAN:
        x[at] = NAN;
        break;
    case INPUT_HUGE:
        x[at] = -0x1p100f;
        break;
    default:
        break;
    }
}

float *input_golden(const char *model, const char *name, size_t *n)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/golden/%s/raw/%s.f32", model, name);
    size_t len = 0;
    float *x = check_read_file(path, &len);
    assert_true(len > 0 && len % sizeof(float) == 0);
    *n = len / sizeof(float);
    return x;
}

struct iso_gguf *input_model(const char *file)
{
    const char *dir = getenv("ISOBIT_MODELS");
    const char *home = getenv("HOME");
    char path[512];
    if (dir) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    } else {
        (void)snprintf(path, sizeof(path), "%s/.cache/isobit/models/%s", home ? home : ".", file);
    }
    if (access(path, R_OK) != 0) fail_msg("no %s: run tools/fetch_models.sh", path);
    struct iso_gguf *g = NULL;
    if (iso_gguf_open(&g, path) != ISO_OK) fail_msg("%s", iso_err_detail());
    return g;
}

float *input_weights(const struct iso_gguf *g, const char *name, size_t *n)
{
    const struct iso_gguf_tensor *t = iso_gguf_find(g, name);
    if (!t || t->type != ISO_TYPE_F32) fail_msg("%s: no f32 tensor of that name", name);
    float *w = check_alloc(t->size_bytes, CHECK_GUARDED);
    iso_copy_le(w, t->data, t->size_bytes / sizeof(*w), sizeof(*w));
    *n = t->size_bytes / sizeof(float);
    return w;
}
