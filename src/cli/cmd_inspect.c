/* SPDX-License-Identifier: MIT
 * cmd_inspect.c - `isobit inspect`: what a model file holds, and whether it can run here. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "format/gguf.h"
#include "isobit.h"

static json_t *scalar(const struct iso_gguf *g, const char *key, enum iso_gguf_value type)
{
    uint32_t u = 0;
    float f = 0;
    bool b = false;
    struct iso_gguf_str s;
    struct iso_gguf_array a;
    switch (type) {
    case ISO_GGUF_STRING:
        if (iso_gguf_str(&s, g, key) != ISO_OK) return json_null();
        if (s.len > 120) return json_sprintf("(text of %zu bytes)", s.len);
        return json_stringn(s.s, s.len);
    case ISO_GGUF_BOOL: return iso_gguf_bool(&b, g, key) == ISO_OK ? json_boolean(b) : json_null();
    case ISO_GGUF_F32:
    case ISO_GGUF_F64: return iso_gguf_f32(&f, g, key) == ISO_OK ? json_real((double)f) : json_null();
    case ISO_GGUF_ARRAY:
        if (iso_gguf_array(&a, g, key) != ISO_OK) return json_null();
        return json_sprintf("(array of %zu)", a.n);
    default: return iso_gguf_u32(&u, g, key) == ISO_OK ? json_integer(u) : json_string("(large integer)");
    }
}

static json_t *keys_json(const struct iso_gguf *g)
{
    json_t *out = json_object();
    for (size_t i = 0; i < iso_gguf_n_keys(g); i++) {
        enum iso_gguf_value type = ISO_GGUF_U8;
        const char *key = iso_gguf_key(g, i, &type);
        (void)json_object_set_new(out, key, scalar(g, key, type));
    }
    return out;
}

static json_t *tensors_json(const struct iso_gguf *g)
{
    json_t *out = json_array();
    for (size_t i = 0; i < iso_gguf_n_tensors(g); i++) {
        const struct iso_gguf_tensor *t = iso_gguf_tensor(g, i);
        json_t *shape = json_array();
        for (unsigned d = 0; d < t->n_dims; d++) {
            (void)json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
        }
        (void)json_array_append_new(
            out, json_pack("{s:s, s:s, s:o, s:I}", "name", t->name, "type",
                           iso_type_info(t->type)->name, "shape", shape, "bytes",
                           (json_int_t)t->size_bytes));
    }
    return out;
}

/* "" when the engine can run the file, else the reason. */
static const char *verdict(char out[512], const char *path, struct iso_engine_info *info)
{
    const struct iso_engine_options o = {.model_path = path};
    out[0] = '\0';
    if (iso_engine_plan(info, &o) != ISO_OK) (void)snprintf(out, 512, "%s", iso_err_message());
    return out;
}

static void print_text(const struct iso_gguf *g, const char *path, bool all)
{
    struct iso_engine_info info;
    char why[512], bytes[16];
    const bool runs = verdict(why, path, &info)[0] == '\0';
    (void)printf("%s: GGUF v%u, %s, %zu tensors, %zu keys\n", path, iso_gguf_version(g),
                 iso_cli_bytes(bytes, iso_gguf_file_bytes(g)), iso_gguf_n_tensors(g), iso_gguf_n_keys(g));
    if (runs) {
        (void)printf("runs here: %s, %u layers of %u, %u query and %u KV heads of %u, vocabulary %u, "
                     "made for %u tokens",
                     info.architecture, info.n_layers, info.n_embd, info.n_heads, info.n_kv_heads,
                     info.head_dim, info.n_vocab, info.n_ctx_train);
        if (info.window) (void)printf(", window %u on %u layers", info.window, info.n_window_layers);
        (void)printf("\n");
    } else {
        (void)printf("does not run here: %s\n", why);
    }
    size_t count[ISO_TYPE_COUNT] = {0};
    uint64_t size[ISO_TYPE_COUNT] = {0};
    for (size_t i = 0; i < iso_gguf_n_tensors(g); i++) {
        const struct iso_gguf_tensor *t = iso_gguf_tensor(g, i);
        count[t->type]++;
        size[t->type] += t->size_bytes;
    }
    for (int t = 0; t < ISO_TYPE_COUNT; t++) {
        if (count[t] == 0) continue;
        (void)printf("  %-7s %5zu tensors %10s\n", iso_type_info((enum iso_type)t)->name, count[t],
                     iso_cli_bytes(bytes, size[t]));
    }
    if (!all) return;
    for (size_t i = 0; i < iso_gguf_n_keys(g); i++) {
        enum iso_gguf_value type = ISO_GGUF_U8;
        const char *key = iso_gguf_key(g, i, &type);
        json_t *v = scalar(g, key, type);
        char *s = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(7));
        (void)printf("%s = %s\n", key, s ? s : "?");
        free(s);
        json_decref(v);
    }
    for (size_t i = 0; i < iso_gguf_n_tensors(g); i++) {
        const struct iso_gguf_tensor *t = iso_gguf_tensor(g, i);
        (void)printf("%-40s %-7s", t->name, iso_type_info(t->type)->name);
        for (unsigned d = 0; d < t->n_dims; d++) (void)printf(" %" PRIu64, t->dims[d]);
        (void)printf("\n");
    }
}

static enum iso_err print_json(const struct iso_gguf *g, const char *path)
{
    struct iso_engine_info info;
    char why[512];
    json_t *j = json_pack("{s:s, s:i, s:I, s:b, s:s, s:o, s:o}", "path", path, "version",
                          (int)iso_gguf_version(g), "bytes", (json_int_t)iso_gguf_file_bytes(g), "runs",
                          verdict(why, path, &info)[0] == '\0', "reason", why, "keys", keys_json(g),
                          "tensors", tensors_json(g));
    const int bad = j == NULL || json_dumpf(j, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
    json_decref(j);
    (void)putchar('\n');
    if (bad) ISO_FAIL(ISO_E_IO, "the description could not be written");
    return ISO_OK;
}

int iso_cmd_inspect(int argc, char **argv)
{
    bool json = false, all = false;
    const struct iso_opt options[] = {
        {"all", 'a', ISO_OPT_FLAG, &all, NULL, "every key and tensor", 0, 0},
        {"json", 0, ISO_OPT_FLAG, &json, NULL, "everything as JSON", 0, 0},
        {0},
    };
    const struct iso_usage usage = {"isobit inspect MODEL [options]",
                                    "Shows what a GGUF file holds and whether it can run here.", options, NULL};
    const char *args[1] = {0};
    bool help = false;
    struct iso_gguf *g = NULL;
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && help) return 0;
    if (err == ISO_OK) err = iso_gguf_open(&g, args[0]);
    if (err == ISO_OK && json) err = print_json(g, args[0]);
    else if (err == ISO_OK) print_text(g, args[0], all);
    iso_gguf_close(g);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
