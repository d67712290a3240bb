/* SPDX-License-Identifier: MIT
 * diff_dump.c - a folder of `isobit digest --boundaries` as a side of a comparison.
 *
 * Everything is checked when it is opened: each tensor and page of the model must be there with the
 * size that the model and the number of positions give, and no other tensor or page. Reading then
 * takes one row or page of memory. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "arith/page.h"
#include "base/buf.h"
#include "base/mem.h"
#include "cli/diff_side.h"

#define PATH_MAX_LEN 4096

struct iso_diff_dump {
    char *dir;
    const struct iso_diff_shape *shape;
    size_t n;
    FILE *f;        /* tensor being read, or NULL */
    size_t t;       /* which */
    float *row;     /* [widest] */
    uint8_t *raw;   /* the same as the file has it, little-endian */
    uint8_t *page;
    char path[PATH_MAX_LEN];
};

/* Sets d->path to a file of the folder. */
static enum iso_err set_path(struct iso_diff_dump *d, const char *name)
{
    if ((size_t)snprintf(d->path, sizeof(d->path), "%s/%s", d->dir, name) >= sizeof(d->path)) {
        ISO_FAIL(ISO_E_ARG, "%.64s...: the path is too long", d->dir);
    }
    return ISO_OK;
}

static enum iso_err tensor_path(struct iso_diff_dump *d, size_t t)
{
    char name[48], file[64];
    (void)snprintf(file, sizeof(file), "%s.f32", iso_diff_tensor_name(name, &d->shape->tensor[t]));
    return set_path(d, file);
}

static enum iso_err page_path(struct iso_diff_dump *d, uint32_t layer, uint32_t head, uint32_t page)
{
    char file[64];
    (void)snprintf(file, sizeof(file), "%02u.page.h%u.p%u.bin", layer, head, page);
    return set_path(d, file);
}

/* --- the check of the whole folder --------------------------------------------------------------- */

static enum iso_err file_size(uint64_t *out, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) ISO_FAIL(ISO_E_IO, "%s: %s", path, strerror(errno));
    *out = (uint64_t)st.st_size;
    return ISO_OK;
}

static enum iso_err check_tensor(struct iso_diff_dump *d, size_t t)
{
    const uint64_t row = d->shape->tensor[t].width * sizeof(float);
    uint64_t len = 0;
    ISO_TRY(tensor_path(d, t));
    ISO_TRY(file_size(&len, d->path));
    if (len != row * d->n) {
        ISO_FAIL(ISO_E_FORMAT, "%s: %llu bytes, the model's %zu positions of %zu values are %llu", d->path,
                 (unsigned long long)len, d->n, d->shape->tensor[t].width,
                 (unsigned long long)(row * d->n));
    }
    return ISO_OK;
}

static uint32_t page_layers(const struct iso_diff_shape *shape)
{
    return ISO_MIN(shape->n_layers, (uint32_t)ISO_DIFF_DUMP_LAYERS);
}

static uint32_t page_count(const struct iso_diff_dump *d)
{
    return (uint32_t)((d->n + ISO_PAGE_POSITIONS - 1) / ISO_PAGE_POSITIONS);
}

static enum iso_err check_page(struct iso_diff_dump *d, uint32_t layer, uint32_t head, uint32_t page)
{
    const uint64_t want = iso_page_bytes(d->shape->head_dim);
    uint64_t len = 0;
    ISO_TRY(page_path(d, layer, head, page));
    ISO_TRY(file_size(&len, d->path));
    if (len != want) {
        ISO_FAIL(ISO_E_FORMAT, "%s: %llu bytes, a page of the model has %llu", d->path,
                 (unsigned long long)len, (unsigned long long)want);
    }
    return ISO_OK;
}

/* Is this a tensor or page that the model's run has? Other files (notes) are nobody's business. */
static bool is_foreign(const struct iso_diff_dump *d, const char *file)
{
    const size_t len = strlen(file);
    unsigned l = 0, h = 0, p = 0;
    int end = 0;
    char name[48], want[64];
    if (len > 4 && strcmp(file + len - 4, ".bin") == 0) {
        if (sscanf(file, "%u.page.h%u.p%u.bin%n", &l, &h, &p, &end) != 3 || (size_t)end != len) return false;
        return l >= page_layers(d->shape) || h >= d->shape->n_kv_heads || p >= page_count(d);
    }
    if (len <= 4 || strcmp(file + len - 4, ".f32") != 0) return false;
    for (size_t t = 0; t + 1 < d->shape->n_tensors; t++) { /* a dump has no logits */
        (void)snprintf(want, sizeof(want), "%s.f32", iso_diff_tensor_name(name, &d->shape->tensor[t]));
        if (strcmp(file, want) == 0) return false;
    }
    return true;
}

static enum iso_err check_foreign(struct iso_diff_dump *d)
{
    DIR *dir = opendir(d->dir);
    if (dir == NULL) ISO_FAIL(ISO_E_IO, "%s: %s", d->dir, strerror(errno));
    enum iso_err err = ISO_OK;
    for (const struct dirent *e = readdir(dir); e != NULL && err == ISO_OK; e = readdir(dir)) {
        if (!is_foreign(d, e->d_name)) continue;
        err = iso_err_raise(ISO_E_FORMAT, __FILE__, __LINE__,
                            "%s/%s: the model's run of %zu positions has no such tensor or page", d->dir,
                            e->d_name, d->n);
    }
    (void)closedir(dir);
    return err;
}

static enum iso_err check_all(struct iso_diff_dump *d)
{
    struct stat st;
    if (stat(d->dir, &st) != 0) {
        const int why = errno;
        ISO_FAIL(ISO_E_IO, "%s is no backend, no HOST:PORT and no dump: %s", d->dir, strerror(why));
    }
    if (!S_ISDIR(st.st_mode)) ISO_FAIL(ISO_E_ARG, "%s is no folder of digest --boundaries", d->dir);
    for (size_t t = 0; t + 1 < d->shape->n_tensors; t++) ISO_TRY(check_tensor(d, t));
    for (uint32_t l = 0; l < page_layers(d->shape); l++) {
        for (uint32_t h = 0; h < d->shape->n_kv_heads; h++) {
            for (uint32_t p = 0; p < page_count(d); p++) ISO_TRY(check_page(d, l, h, p));
        }
    }
    return check_foreign(d);
}

/* --- reading ------------------------------------------------------------------------------------- */

enum iso_err iso_diff_dump_open(struct iso_diff_dump **out, const char *dir,
                                const struct iso_diff_shape *shape, size_t n)
{
    struct iso_diff_dump *d = iso_xalloc(1, sizeof(*d));
    *d = (struct iso_diff_dump){.dir = iso_xstrdup(dir), .shape = shape, .n = n};
    const enum iso_err err = check_all(d);
    if (err != ISO_OK) {
        iso_diff_dump_close(d);
        return err;
    }
    size_t widest = 0;
    for (size_t t = 0; t + 1 < shape->n_tensors; t++) widest = ISO_MAX(widest, shape->tensor[t].width);
    d->row = iso_xalloc(widest, sizeof(*d->row));
    d->raw = iso_xalloc(widest, sizeof(*d->row));
    d->page = iso_xalloc(1, iso_page_bytes(shape->head_dim));
    *out = d;
    return ISO_OK;
}

void iso_diff_dump_close(struct iso_diff_dump *d)
{
    if (d == NULL) return;
    if (d->f != NULL) (void)fclose(d->f);
    free(d->dir);
    free(d->row);
    free(d->raw);
    free(d->page);
    free(d);
}

static enum iso_err read_all(struct iso_diff_dump *d, void *out, size_t len)
{
    if (fread(out, 1, len, d->f) == len) return ISO_OK;
    if (ferror(d->f)) ISO_FAIL(ISO_E_IO, "%s: %s", d->path, strerror(errno));
    ISO_FAIL(ISO_E_FORMAT, "%s: the file became shorter", d->path);
}

static enum iso_err open_path(struct iso_diff_dump *d)
{
    if (d->f != NULL) (void)fclose(d->f);
    d->f = fopen(d->path, "rbe");
    if (d->f == NULL) ISO_FAIL(ISO_E_IO, "%s: %s", d->path, strerror(errno));
    return ISO_OK;
}

enum iso_err iso_diff_dump_tensor(struct iso_diff_dump *d, size_t t, size_t at)
{
    ISO_TRY(tensor_path(d, t));
    ISO_TRY(open_path(d));
    d->t = t;
    if (fseeko(d->f, (off_t)(at * d->shape->tensor[t].width * sizeof(float)), SEEK_SET) != 0) {
        ISO_FAIL(ISO_E_IO, "%s: %s", d->path, strerror(errno));
    }
    return ISO_OK;
}

enum iso_err iso_diff_dump_row(const float **out, struct iso_diff_dump *d)
{
    const size_t width = d->shape->tensor[d->t].width;
    ISO_TRY(read_all(d, d->raw, width * sizeof(*d->row)));
    iso_copy_le(d->row, d->raw, width, sizeof(*d->row));
    *out = d->row;
    return ISO_OK;
}

enum iso_err iso_diff_dump_page(const uint8_t **out, struct iso_diff_dump *d, uint32_t layer,
                                uint32_t head, uint32_t page)
{
    *out = NULL;
    if (layer >= page_layers(d->shape)) return ISO_OK;
    ISO_TRY(page_path(d, layer, head, page));
    ISO_TRY(open_path(d));
    ISO_TRY(read_all(d, d->page, iso_page_bytes(d->shape->head_dim)));
    *out = d->page;
    return ISO_OK;
}
