/* SPDX-License-Identifier: MIT
 * cmd_identity.c - `isobit identity`: what this program is, which kernels it would run here, what a model is. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "device/device.h"
#include "device/program_image.h"
#include "isobit_kv.h"

struct backend {
    const char *device;
    enum iso_err (*open)(struct iso_device **out, const char *isa);
    const char *levels[8]; /* NULL ends; lowest first */
};

static enum iso_err open_cpu(struct iso_device **out, const char *isa)
{
    return iso_device_cpu_open(out, isa, 1);
}

static const struct backend backends[] = {
    {"cpu", open_cpu, {"ref", "avx2", "avx512", "vnni", "neon"}},
    {"cuda", iso_device_cuda_open, {"generic", "sm90"}},
    {"metal", iso_device_metal_open, {"serial", "concurrent"}},
};

static void set_digest(json_t *o, const char *key, const struct iso_digest *d)
{
    char hex[ISO_DIGEST_HEX];
    iso_digest_hex(hex, d);
    (void)json_object_set_new(o, key, json_string(hex));
}

/* --- backends ------------------------------------------------------------------------------------------ */

/* One level: the digest of the kernels that it runs here, or why it does not run. NULL for a level of another
 * kind of processor. */
static json_t *level_json(const struct backend *b, const char *isa)
{
    json_t *o = json_pack("{s:s}", "isa", isa);
    struct iso_device *dev = NULL;
    const enum iso_err err = b->open(&dev, isa);
    if (err == ISO_E_ARG) {
        json_decref(o);
        return NULL;
    }
    if (err != ISO_OK) {
        (void)json_object_set_new(o, "reason", json_string(iso_err_message()));
        return o;
    }
    struct iso_digest d;
    dev->vt->identity(dev, &d);
    set_digest(o, "kernels", &d);
    dev->vt->close(dev);
    return o;
}

/* What "auto" takes, or null. */
static json_t *auto_level(const struct backend *b)
{
    struct iso_device *dev = NULL;
    if (b->open(&dev, "auto") != ISO_OK) return json_null();
    json_t *name = json_string(dev->vt->level(dev));
    dev->vt->close(dev);
    return name;
}

static json_t *images_json(void)
{
    struct iso_gpu_image image[ISO_GPU_IMAGES];
    size_t n = 0;
    json_t *all = json_array();
    if (iso_gpu_images(image, ISO_COUNT(image), &n) != ISO_OK) {
        (void)json_array_append_new(all, json_pack("{s:s}", "reason", iso_err_message()));
        return all;
    }
    for (size_t i = 0; i < n; i++) {
        char arch[24];
        const bool ptx = image[i].arch >> 31;
        (void)snprintf(arch, sizeof(arch), "%s_%u", ptx ? "compute" : "sm", image[i].arch & 0x7fffffff);
        json_t *o = json_pack("{s:s, s:i, s:I}", "arch", arch, "count", (int)image[i].n, "bytes",
                              (json_int_t)image[i].bytes);
        set_digest(o, "sha256", &image[i].sha256);
        (void)json_array_append_new(all, o);
    }
    return all;
}

static json_t *backends_json(void)
{
    json_t *all = json_array();
    for (size_t i = 0; i < ISO_COUNT(backends); i++) {
        const struct backend *b = &backends[i];
        json_t *levels = json_array();
        for (size_t l = 0; l < ISO_COUNT(b->levels) && b->levels[l]; l++) {
            json_t *level = level_json(b, b->levels[l]);
            if (level) (void)json_array_append_new(levels, level);
        }
        json_t *o = json_pack("{s:s, s:o, s:o}", "device", b->device, "auto", auto_level(b), "levels", levels);
        if (strcmp(b->device, "cuda") == 0) (void)json_object_set_new(o, "images", images_json());
        (void)json_array_append_new(all, o);
    }
    return all;
}

/* --- the model ------------------------------------------------------------------------------------------- */

/* On the CPU: the digests are of the file and do not depend on a device. */
static enum iso_err model_json(json_t **out, const char *path)
{
    const struct iso_engine_options o = {.model_path = path, .isa = "ref", .n_threads = 1, .n_ctx = 1,
                                         .n_batch = 1};
    iso_engine *e = NULL;
    struct iso_identity id;
    struct iso_bar bar;
    ISO_TRY(iso_engine_open(&e, &o));
    const struct iso_progress progress = iso_bar_start(&bar, "identity of the weights");
    const enum iso_err err = iso_engine_identity(&id, e, &progress);
    iso_bar_end(&bar);
    if (err == ISO_OK) {
        *out = json_pack("{s:s, s:s}", "architecture", iso_engine_info(e)->architecture, "arithmetic", id.arithmetic);
        set_digest(*out, "weights", &id.weights);
        set_digest(*out, "tokenizer", &id.tokenizer);
        set_digest(*out, "chat_template", &id.chat_template);
        set_digest(*out, "page_format", &id.page_format);
        set_digest(*out, "context", &id.context);
    }
    iso_engine_close(e);
    return err;
}

/* --- output ---------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static void print_people(const json_t *all)
{
    size_t i = 0, l = 0;
    json_t *b = NULL, *level = NULL;
    const char *key = NULL;
    (void)printf("isobit %s (%s), %s, pages %s\n", text_of(all, "version"), text_of(all, "commit"),
                 text_of(all, "arithmetic"), text_of(all, "page_format"));
    json_array_foreach(json_object_get(all, "backends"), i, b)
    {
        json_array_foreach(json_object_get(b, "levels"), l, level)
        {
            const bool runs = json_object_get(level, "kernels") != NULL;
            const bool is_auto = runs && strcmp(text_of(level, "isa"), text_of(b, "auto")) == 0;
            (void)printf("%-5s %-8s %s%s\n", text_of(b, "device"), text_of(level, "isa"),
                         runs ? text_of(level, "kernels") : text_of(level, "reason"), is_auto ? " (auto)" : "");
        }
        json_array_foreach(json_object_get(b, "images"), l, level)
        {
            (void)printf("      %-8s %s %lld bytes of GPU code\n", text_of(level, "arch"),
                         json_object_get(level, "sha256") ? text_of(level, "sha256") : text_of(level, "reason"),
                         (long long)json_integer_value(json_object_get(level, "bytes")));
        }
    }
    json_object_foreach(json_object_get(all, "model"), key, b)
    {
        (void)printf("%-14s %s\n", key, json_string_value(b));
    }
}

static enum iso_err identity_main(const char *model, bool json)
{
    json_t *m = NULL;
    if (model) ISO_TRY(model_json(&m, model));
    json_t *all = json_pack("{s:s, s:s, s:s, s:s, s:o}", "version", ISO_VERSION, "commit", iso_cli_commit(),
                            "arithmetic", ISO_ARITHMETIC, "page_format", ISO_PAGE_FORMAT, "backends", backends_json());
    if (m) (void)json_object_set_new(all, "model", m);
    if (json) {
        (void)json_dumpf(all, stdout, JSON_INDENT(1));
        (void)putchar('\n');
    } else {
        print_people(all);
    }
    json_decref(all);
    return ISO_OK;
}

int iso_cmd_identity(int argc, char **argv)
{
    bool json = false, help = false;
    const struct iso_opt options[] = {
        {"json", 0, ISO_OPT_FLAG, &json, NULL, "as JSON", 0, 0},
        {0},
    };
    const struct iso_usage usage = {
        "isobit identity [MODEL] [options]",
        "Prints version, commit, arithmetic and page format, the backends of this program and for each level of this\n"
        "machine the SHA-256 of the kernels that will run, as receipts, manifests and bench rows have it; of a model\n"
        "the digests that two machines must share.",
        options, NULL};
    const char *args[1] = {0};
    enum iso_err err = iso_options_parse(args, 0, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && help) return 0;
    if (err == ISO_OK) err = identity_main(args[0], json);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
