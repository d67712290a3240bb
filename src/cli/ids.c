/* SPDX-License-Identifier: MIT
 * ids.c - reads token ids. */
#include "cli/ids.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cli/options.h"

#define MAX_FILE (256u << 20) /* 16 million ids of 16 characters */

static enum iso_err parse(struct iso_ids *out, const char *text, const char *path)
{
    size_t cap = 0;
    for (const char *p = text;;) {
        while (isspace((unsigned char)*p)) p++;
        if (*p == '\0') break;
        char *end = NULL;
        errno = 0;
        const long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX || (*end && !isspace((unsigned char)*end))) {
            ISO_FAIL(ISO_E_FORMAT, "%s: '%.16s' after %zu ids is not an id", path, p, out->n);
        }
        if (out->n == cap) {
            cap = cap ? 2 * cap : 1024;
            out->id = iso_xrealloc(out->id, cap, sizeof(*out->id));
        }
        out->id[out->n++] = (int32_t)v;
        p = end;
    }
    if (out->n == 0) ISO_FAIL(ISO_E_ARG, "%s holds no ids", path);
    return ISO_OK;
}

enum iso_err iso_ids_read(struct iso_ids *out, const char *path)
{
    struct iso_buf b;
    *out = (struct iso_ids){0};
    enum iso_err err = iso_cli_read(&b, path, MAX_FILE);
    if (err == ISO_OK) err = parse(out, (const char *)b.data, path);
    iso_buf_deinit(&b);
    return err;
}

void iso_ids_free(struct iso_ids *ids)
{
    free(ids->id);
    *ids = (struct iso_ids){0};
}
