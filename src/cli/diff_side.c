/* SPDX-License-Identifier: MIT
 * diff_side.c - picks what a side is by its name and forwards to it. */
#include "cli/diff_side.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct iso_diff_side {
    struct iso_diff_backend *backend; /* of a backend and of a producer */
    struct iso_diff_dump *dump;
    size_t n; /* positions of a dump */
};

enum iso_diff_kind iso_diff_kind(const char *spec)
{
    const char *colon = strrchr(spec, ':');
    if (colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1)) return ISO_DIFF_PRODUCER;
    static const char *const device[] = {"cpu", "cuda", "metal"};
    for (size_t i = 0; i < ISO_COUNT(device); i++) {
        const size_t len = strlen(device[i]);
        if (strncmp(spec, device[i], len) == 0 && (spec[len] == '\0' || spec[len] == ':')) {
            return ISO_DIFF_BACKEND;
        }
    }
    return ISO_DIFF_DUMP;
}

enum iso_err iso_diff_side_open(struct iso_diff_side **out, unsigned index,
                                const struct iso_diff_shape *shape,
                                const struct iso_diff_options *o)
{
    struct iso_diff_side *s = iso_xalloc(1, sizeof(*s));
    const enum iso_diff_kind kind = iso_diff_kind(o->spec[index]);
    enum iso_err err = ISO_OK;
    s->n = o->n;
    if (kind == ISO_DIFF_DUMP) err = iso_diff_dump_open(&s->dump, o->spec[index], shape, o->n);
    else err = iso_diff_backend_open(&s->backend, index, kind == ISO_DIFF_PRODUCER, shape, o);
    if (err != ISO_OK) {
        free(s);
        return err;
    }
    *out = s;
    return ISO_OK;
}

void iso_diff_side_close(struct iso_diff_side *s)
{
    if (s == NULL) return;
    iso_diff_backend_close(s->backend);
    iso_diff_dump_close(s->dump);
    free(s);
}

enum iso_err iso_diff_side_start(struct iso_diff_side *s, size_t n_tensors)
{
    return s->dump ? ISO_OK : iso_diff_backend_start(s->backend, n_tensors);
}

enum iso_err iso_diff_side_tensor(struct iso_diff_side *s, size_t t, size_t at, size_t n)
{
    return s->dump ? iso_diff_dump_tensor(s->dump, t, at) : iso_diff_backend_wait(s->backend, t, at, n);
}

enum iso_err iso_diff_side_row(const float **out, struct iso_diff_side *s, size_t i)
{
    if (s->dump) return iso_diff_dump_row(out, s->dump);
    *out = iso_diff_backend_row(s->backend, i);
    return ISO_OK;
}

void iso_diff_side_release(struct iso_diff_side *s)
{
    if (s->backend) iso_diff_backend_release(s->backend);
}

enum iso_err iso_diff_side_handoff(struct iso_diff_side *s)
{
    return s->dump ? ISO_OK : iso_diff_backend_handoff(s->backend);
}

enum iso_err iso_diff_side_finish(struct iso_diff_side *s, uint32_t *n_positions)
{
    if (s->backend) ISO_TRY(iso_diff_backend_finish(s->backend));
    *n_positions = s->dump ? (uint32_t)s->n : iso_diff_backend_positions(s->backend);
    return ISO_OK;
}

enum iso_err iso_diff_side_page(const uint8_t **out, struct iso_diff_side *s, uint32_t layer,
                                uint32_t head, uint32_t page)
{
    if (s->dump) return iso_diff_dump_page(out, s->dump, layer, head, page);
    *out = iso_diff_backend_page(s->backend, layer, head, page);
    return ISO_OK;
}
