/* SPDX-License-Identifier: MIT
 * program_image.c - reads CUDA fat binaries: which GPU code a program holds. */
#include "device/program_image.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

/* --- CUDA fat binaries --------------------------------------------------------------------------------
 * A header (magic, version, its own size, size of what follows), then entries: kind, size of their header,
 * stored bytes, architecture. As nvcc 11 to 13 write them; anything else is refused, never guessed. */

#define GPU_SECTION ".nv_fatbin"
#define FATBIN_MAGIC 0xba55ed50u
#define HEADER_BYTES 16u
#define ENTRY_BYTES 32u /* of an entry's header: what is read here; it is longer */
#define KIND_PTX 1u
#define KIND_ELF 2u

struct reader {
    struct iso_gpu_image *out;
    struct iso_hasher *hash[ISO_GPU_IMAGES];
    size_t cap, n;
};

/* The place of an architecture, kept in ascending order. */
static enum iso_err place_of(struct reader *r, uint32_t arch, size_t *at)
{
    size_t i = 0;
    while (i < r->n && r->out[i].arch < arch) i++;
    *at = i;
    if (i < r->n && r->out[i].arch == arch) return ISO_OK;
    if (r->n == r->cap || r->n == ISO_GPU_IMAGES) ISO_FAIL(ISO_E_LIMIT, "more than %zu GPU architectures", r->n);
    memmove(&r->out[i + 1], &r->out[i], (r->n - i) * sizeof(r->out[0]));
    memmove(&r->hash[i + 1], &r->hash[i], (r->n - i) * sizeof(r->hash[0]));
    r->out[i] = (struct iso_gpu_image){.arch = arch};
    r->hash[i] = iso_hasher_new();
    r->n++;
    return ISO_OK;
}

/* Entries [len] of one fat binary; at is its offset, for messages. */
static enum iso_err read_entries(struct reader *r, const uint8_t *p, size_t len, size_t at)
{
    while (len > 0) {
        if (len < ENTRY_BYTES) ISO_FAIL(ISO_E_FORMAT, "GPU code at %zu: %zu bytes left for an entry", at, len);
        const uint32_t kind = iso_get_u16(p), head = iso_get_u32(p + 4), arch = iso_get_u32(p + 28);
        const uint64_t size = iso_get_u64(p + 8);
        if (head < ENTRY_BYTES || head > len || size > len - head) {
            ISO_FAIL(ISO_E_FORMAT, "GPU code at %zu: an entry of %u and %llu bytes in %zu", at, head,
                     (unsigned long long)size, len);
        }
        if (kind != KIND_PTX && kind != KIND_ELF) ISO_FAIL(ISO_E_FORMAT, "GPU code at %zu: kind %u", at, kind);
        size_t i = 0;
        ISO_TRY(place_of(r, kind == KIND_PTX ? arch | 1u << 31 : arch, &i));
        iso_hasher_update(r->hash[i], p + head, size);
        r->out[i].n++;
        r->out[i].bytes += size;
        p += head + size;
        len -= head + size;
        at += head + size;
    }
    return ISO_OK;
}

static enum iso_err read_all(struct reader *r, const uint8_t *p, size_t len)
{
    size_t at = 0;
    while (len - at >= HEADER_BYTES) {
        const uint32_t magic = iso_get_u32(p + at), head = iso_get_u16(p + at + 6);
        if (magic == 0) { /* the linker aligns them */
            at += 4;
            continue;
        }
        if (magic != FATBIN_MAGIC) ISO_FAIL(ISO_E_FORMAT, "GPU code at %zu: magic %08x", at, magic);
        const uint64_t size = iso_get_u64(p + at + 8);
        if (head < HEADER_BYTES || head > len - at || size > len - at - head) {
            ISO_FAIL(ISO_E_FORMAT, "GPU code at %zu: %llu bytes in %zu", at, (unsigned long long)size, len - at);
        }
        ISO_TRY(read_entries(r, p + at + head, (size_t)size, at + head));
        at += head + (size_t)size;
    }
    for (; at < len; at++) {
        if (p[at] != 0) ISO_FAIL(ISO_E_FORMAT, "GPU code at %zu: %zu stray bytes", at, len - at);
    }
    return ISO_OK;
}

enum iso_err iso_gpu_images_read(struct iso_gpu_image *out, size_t cap, size_t *n, const uint8_t *p, size_t len)
{
    struct reader r = {.out = out, .cap = cap};
    const enum iso_err err = read_all(&r, p, len);
    for (size_t i = 0; i < r.n; i++) {
        iso_hasher_final(r.hash[i], &out[i].sha256);
        iso_hasher_free(r.hash[i]);
    }
    *n = err == ISO_OK ? r.n : 0;
    return err;
}

enum iso_err iso_gpu_images(struct iso_gpu_image *out, size_t cap, size_t *n)
{
    const uint8_t *p = NULL;
    size_t len = 0;
    *n = 0;
    const enum iso_err err = iso_program_section(&p, &len, GPU_SECTION);
    if (err == ISO_E_UNSUPPORTED) return ISO_OK;
    ISO_TRY(err);
    return iso_gpu_images_read(out, cap, n, p, len);
}

void iso_gpu_kernels_digest(struct iso_digest *out, const char *level, uint32_t arch)
{
    struct iso_gpu_image image[ISO_GPU_IMAGES];
    const struct iso_gpu_image *chosen = NULL;
    size_t n = 0;
    if (iso_gpu_images(image, ISO_COUNT(image), &n) != ISO_OK) n = 0;
    for (size_t i = 0; i < n; i++) {
        if (image[i].arch == arch) chosen = &image[i];
    }
    char text[96];
    struct iso_hasher *h = iso_hasher_new();
    if (chosen) {
        (void)snprintf(text, sizeof(text), "isobit-kernels-1 cuda %s sm_%u\n", level, arch);
        iso_hasher_update(h, text, strlen(text));
        iso_hasher_update(h, chosen->sha256.bytes, sizeof(chosen->sha256.bytes));
    } else {
        const uint8_t *p = NULL;
        size_t len = 0;
        (void)snprintf(text, sizeof(text), "isobit-kernels-1 cuda %s whole\n", level);
        iso_hasher_update(h, text, strlen(text));
        if (iso_program_section(&p, &len, GPU_SECTION) == ISO_OK) iso_hasher_update(h, p, len);
    }
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}
