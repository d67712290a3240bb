/* SPDX-License-Identifier: MIT
 * gguf_split.c - names and checks of split models (llama.cpp gguf-split, keys split.*). */
#include "format/gguf_split.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define SUFFIX_LEN 20 /* "-00001-of-00003.gguf" */

static bool five_digits(unsigned *out, const char *s)
{
    unsigned v = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = v * 10 + (unsigned)(s[i] - '0');
    }
    *out = v;
    return true;
}

bool iso_split_name_parse(struct iso_split_name *out, const char *path)
{
    const size_t len = strlen(path);
    if (len < SUFFIX_LEN) return false;
    const char *s = path + len - SUFFIX_LEN;
    struct iso_split_name n = {len - SUFFIX_LEN, 0, 0};
    if (s[0] != '-' || !five_digits(&n.no, s + 1) || memcmp(s + 6, "-of-", 4) != 0 ||
        !five_digits(&n.count, s + 10) || strcmp(s + 15, ".gguf") != 0) {
        return false;
    }
    *out = n;
    return true;
}

/* Path of part no (from 1) of count. Returns owned, free with free(). */
static char *part_path(const char *path, size_t prefix_len, unsigned no, unsigned count)
{
    const size_t size = prefix_len + 64;
    char *s = iso_xalloc(size, 1);
    (void)snprintf(s, size, "%.*s-%05u-of-%05u.gguf", (int)prefix_len, path, no, count);
    return s;
}

/* A file without split.count, or with a count of one. */
static enum iso_err check_single(const char *path, uint32_t no, uint32_t count)
{
    struct iso_split_name name;
    if (iso_split_name_parse(&name, path) && name.count > 1) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: is named as part %u of %u, but its key split.count says %" PRIu32
                 "; rename it if it is whole",
                 path, name.no, name.count, count);
    }
    if (no != 0) {
        ISO_FAIL(ISO_E_FORMAT, "%s: split.no is %" PRIu32 " but split.count is %" PRIu32, path, no,
                 count);
    }
    return ISO_OK;
}

/* The first file of several: its name must agree with its keys. */
static enum iso_err
check_first(struct iso_split_name *name, const char *path, uint32_t no, uint32_t count)
{
    if (count > ISO_GGUF_MAX_SPLITS) {
        ISO_FAIL(ISO_E_LIMIT, "%s: split.count is %" PRIu32 ", the limit is %d", path, count,
                 ISO_GGUF_MAX_SPLITS);
    }
    if (no >= count) {
        ISO_FAIL(ISO_E_FORMAT, "%s: split.no is %" PRIu32 " but split.count is %" PRIu32, path, no,
                 count);
    }
    if (!iso_split_name_parse(name, path) || name->no != no + 1 || name->count != count) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: holds part %" PRIu32 " of %" PRIu32 " of a split model but is not named"
                 " NAME-%05" PRIu32 "-of-%05" PRIu32 ".gguf; give the parts their names back",
                 path, no + 1, count, no + 1, count);
    }
    if (no != 0) {
        ISO_FAIL(ISO_E_FORMAT, "%s: is part %u of %u; open the first one, %.*s-00001-of-%05u.gguf",
                 path, name->no, name->count, (int)name->prefix_len, path, name->count);
    }
    return ISO_OK;
}

/* Part i (from 0) must say that it is part i of count. */
static enum iso_err check_part(const struct iso_gguf_part *p, uint32_t i, uint32_t count)
{
    uint32_t no = UINT32_MAX;
    uint32_t n = 0;
    ISO_TRY(iso_gguf_part_u32(&no, p, "split.no"));
    ISO_TRY(iso_gguf_part_u32(&n, p, "split.count"));
    if (no != i || n != count) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: split.no is %" PRId64 " and split.count %" PRIu32 ", the name says %" PRIu32
                 " and %" PRIu32,
                 iso_mapped_path(p->file), no == UINT32_MAX ? -1 : (int64_t)no, n, i, count);
    }
    return ISO_OK;
}

static enum iso_err
open_part(struct iso_gguf_part *p, const char *first, size_t prefix_len, uint32_t i, uint32_t count)
{
    char *path = part_path(first, prefix_len, i + 1, count);
    enum iso_err err = iso_gguf_part_init(p, path, false);
    free(path);
    if (err == ISO_E_IO) {
        ISO_FAIL(err, "%s (part %" PRIu32 " of %" PRIu32 "; all parts must lie in one folder)",
                 iso_err_message(), i + 1, count);
    }
    ISO_TRY(err);
    err = check_part(p, i, count);
    if (err != ISO_OK) iso_gguf_part_deinit(p);
    return err;
}

/* split.tensors.count of the first part against what all parts hold. */
static enum iso_err check_tensor_count(const struct iso_gguf_part *parts, size_t n_parts)
{
    size_t n_tensors = 0;
    for (size_t i = 0; i < n_parts; i++) n_tensors += parts[i].n_tensors;
    const char *path = iso_mapped_path(parts[0].file);
    if (iso_gguf_part_find(&parts[0], "split.tensors.count") == NULL) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key 'split.tensors.count' is missing", path);
    }
    uint32_t want = 0;
    ISO_TRY(iso_gguf_part_u32(&want, &parts[0], "split.tensors.count"));
    if (want != n_tensors) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: split.tensors.count is %" PRIu32 " but the %zu parts hold %zu tensors", path,
                 want, n_parts, n_tensors);
    }
    return ISO_OK;
}

/* Parts 1 .. count - 1; *n_parts counts what is open. */
static enum iso_err open_others(
    struct iso_gguf_part *parts, size_t *n_parts, const char *path, uint32_t no, uint32_t count)
{
    struct iso_split_name name = {0};
    ISO_TRY(check_first(&name, path, no, count));
    for (uint32_t i = 1; i < count; i++) {
        ISO_TRY(open_part(&parts[i], path, name.prefix_len, i, count));
        *n_parts = i + 1;
    }
    return check_tensor_count(parts, *n_parts);
}

enum iso_err iso_gguf_parts_open(struct iso_gguf_part **parts, size_t *n_parts, const char *path)
{
    struct iso_gguf_part *p = iso_xalloc(1, sizeof(*p));
    size_t n = 0;
    uint32_t count = 0;
    uint32_t no = 0;
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_gguf_part_init(p, path, true));
    n = 1;
    ISO_TRY_OUT(iso_gguf_part_u32(&count, p, "split.count"));
    ISO_TRY_OUT(iso_gguf_part_u32(&no, p, "split.no"));
    if (count <= 1) {
        ISO_TRY_OUT(check_single(path, no, count));
    } else {
        const uint32_t room = ISO_MIN(count, ISO_GGUF_MAX_SPLITS);
        p = iso_xrealloc(p, room, sizeof(*p));
        ISO_TRY_OUT(open_others(p, &n, path, no, count));
    }
    *parts = p;
    *n_parts = n;
    return ISO_OK;
out:
    iso_gguf_parts_free(p, n);
    return err;
}

void iso_gguf_parts_free(struct iso_gguf_part *parts, size_t n_parts)
{
    for (size_t i = 0; parts != NULL && i < n_parts; i++) iso_gguf_part_deinit(&parts[i]);
    free(parts);
}
