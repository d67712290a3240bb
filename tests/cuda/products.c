/* SPDX-License-Identifier: MIT
 * products.c - weight matrices of every type and their products, on the CPU and on a GPU. */
#include "cuda/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

/* --- weights ---------------------------------------------------------------------------------------- */

/* Every byte of blocks that is not forced otherwise; negative: random ones. */
static int fill_byte = -1;

/* Blocks of a type. edge: scales of zero, -0, subnormal, negative and large among ordinary ones. */
static void fill_blocks(struct pair *p, uint8_t *at, enum iso_type t, size_t n, bool edge)
{
    static const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0xb000, 0x7bff, 0x3c00, 0x0400};
    static const int f16_at[ISO_TYPE_COUNT][2] = {
        [ISO_TYPE_F32] = {-1, -1},   [ISO_TYPE_F16] = {0, -1},    [ISO_TYPE_BF16] = {-1, -1},
        [ISO_TYPE_Q4_0] = {0, -1},   [ISO_TYPE_Q4_1] = {0, 2},    [ISO_TYPE_Q5_0] = {0, -1},
        [ISO_TYPE_Q5_1] = {0, 2},    [ISO_TYPE_Q8_0] = {0, -1},   [ISO_TYPE_IQ4_NL] = {0, -1},
        [ISO_TYPE_Q4_K] = {0, 2},    [ISO_TYPE_Q5_K] = {0, 2},    [ISO_TYPE_Q6_K] = {208, -1},
        [ISO_TYPE_MXFP4] = {-1, -1}, [ISO_TYPE_NVFP4] = {-1, -1}};
    const size_t len = iso_type_info(t)->block_bytes;
    for (size_t b = 0; b < n; b++, at += len) {
        for (size_t i = 0; i < len; i++) at[i] = (uint8_t)(fill_byte < 0 ? (int)(pair_next(p) >> 17 & 255) : fill_byte);
        for (int f = 0; f < 2; f++) {
            if (f16_at[t][f] < 0) continue;
            uint8_t *h = at + f16_at[t][f];
            h[1] = (uint8_t)((h[1] & 0x83) | 0x20);
            if (edge && pair_next(p) % 3 == 0) {
                const uint16_t o = odd[(pair_next(p) >> 9) % ISO_COUNT(odd)];
                memcpy(h, &o, 2);
            }
        }
        if (t == ISO_TYPE_MXFP4) at[0] = edge ? (uint8_t)(at[0] % 160) : (uint8_t)(118 + at[0] % 12);
        if (t == ISO_TYPE_BF16) at[1] = (uint8_t)((at[1] & 0x80) | (edge ? at[1] % 0x60 : 0x3d));
        if (t == ISO_TYPE_F32) at[3] = (uint8_t)((at[3] & 0x80) | (edge ? at[3] % 0x60 : 0x3d));
        if (t == ISO_TYPE_NVFP4 && !edge) {
            for (int i = 0; i < 4; i++) at[i] = (uint8_t)(0x28 | (at[i] & 0x17));
        }
    }
}

/* Pages of their own, like a file's mapping: a device may use them in place. */
static uint8_t *new_pages(size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (p == MAP_FAILED) {
        printf("FAIL no memory for %zu bytes\n", len);
        exit(1);
    }
    return p;
}

struct matrix make_matrix(struct pair *p, enum iso_type t, uint32_t n_rows, uint32_t n_cols, bool edge)
{
    struct matrix m = {0};
    const size_t row = iso_type_row_bytes(t, n_cols);
    m.len = row * n_rows;
    m.bytes = new_pages(m.len);
    fill_blocks(p, m.bytes, t, row * n_rows / iso_type_info(t)->block_bytes, edge);
    for (int i = 0; i < 2; i++) {
        m.w[i] = (struct iso_weight){.type = (uint32_t)t, .n_rows = n_rows, .n_cols = n_cols, .row_bytes = row,
                                     .scale = 1.0f};
        if (p->dev[i]->vt->map(p->dev[i], m.bytes, row * n_rows, &m.w[i].data.buffer) != ISO_OK ||
            p->dev[i]->vt->weight(p->dev[i], &m.w[i]) != ISO_OK) {
            printf("FAIL %s\n", iso_err_detail());
            exit(1);
        }
    }
    return m;
}

void free_matrix(struct pair *p, struct matrix *m)
{
    for (int i = 0; i < 2; i++) p->dev[i]->vt->free(p->dev[i], m->w[i].data.buffer);
    (void)munmap(m->bytes, m->len);
}

struct both make_codes(struct pair *p, size_t n_rows, size_t n)
{
    struct both b = {0};
    for (int i = 0; i < 2; i++) {
        const size_t len = p->dev[i]->vt->codes_bytes(p->dev[i], n_rows, n);
        if (p->dev[i]->vt->alloc(p->dev[i], len, ISO_MEM_DEVICE, "codes", &b.s[i].buffer) != ISO_OK) exit(1);
    }
    return b;
}

/* --- products ------------------------------------------------------------------------------------------ */

uint32_t pick_cols(struct pair *p, enum iso_type t)
{
    const uint32_t b = iso_type_info(t)->block_values;
    const uint32_t n = p->small ? PICK(p, 32, 64, 96, 256, 288, 320, 512, 544)
                                : PICK(p, 32, 64, 96, 256, 288, 320, 512, 576, 640, 1024, 1536, 2080, 4096);
    return b <= 32 ? n : (n + b - 1) / b * b;
}

/* signs: 0 random values, else all activations +1 or -1 (2, 3: in turn), the largest codes. */
static struct both make_activations(struct pair *p, size_t n, float size, int signs)
{
    if (signs == 0) return pair_floats(p, n, size);
    float *x = malloc(n * sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = signs == 1 || (signs == 3 && i % 2) ? 1.0f : -1.0f;
    const struct both b = pair_buffer(p, n * sizeof(*x), ISO_MEM_DEVICE, x);
    free(x);
    return b;
}

static void test_product(struct pair *p, enum iso_type t, uint32_t n_act, uint32_t n_rows, uint32_t n_cols, int signs)
{
    const bool edge = pair_next(p) % 3 == 0, with_bias = pair_next(p) % 2, two = pair_next(p) % 3 == 0;
    const float size = (const float[]){1.0f, 1e-3f, 300.0f, 1e-9f}[pair_next(p) % 4];
    struct both x = make_activations(p, (size_t)n_act * n_cols, size, signs), codes = make_codes(p, n_act, n_cols);
    struct both y = pair_buffer(p, (size_t)n_act * n_rows * 4, ISO_MEM_DEVICE, NULL);
    const uint32_t n_second = n_rows % 128 == 0 ? 256 : 40; /* matrices of whole tiles may share a launch */
    struct both y2 = pair_buffer(p, (size_t)n_act * n_second * 4, ISO_MEM_DEVICE, NULL), bias = pair_floats(p, n_rows, 1.0f);
    struct matrix m = make_matrix(p, t, n_rows, n_cols, edge), m2 = make_matrix(p, t, n_second, n_cols, edge);
    pair_begin(p);
    for (int i = 0; i < 2; i++) {
        if (with_bias) m.w[i].bias = bias.s[i];
        if (!with_bias) m.w[i].has_scale = 1, m.w[i].scale = 0.3125f;
        p->dev[i]->vt->quantize(p->q[i], &(struct iso_op_quantize){.x = x.s[i], .codes = codes.s[i], .n = n_cols, .n_rows = n_act});
        p->dev[i]->vt->matmul(p->q[i], &(struct iso_op_matmul){.codes = codes.s[i], .weight = {m.w[i], m2.w[i]},
            .y = {y.s[i], y2.s[i]}, .n_weights = two ? 2 : 1, .n_rows = n_act});
    }
    (void)pair_sync(p);
    bool good = pair_equal(p, y, y.len, "y");
    if (two) good = pair_equal(p, y2, y2.len, "second y") && good;
    pair_case(p, good, "matmul %s: %u x %u, %u rows, edge %d, bias %d, size %g, bytes %d, signs %d",
              iso_type_info(t)->name, n_rows, n_cols, n_act, edge, with_bias, (double)size, fill_byte, signs);
    const struct both all[] = {x, codes, y, y2, bias};
    for (size_t i = 0; i < ISO_COUNT(all); i++) pair_free(p, all[i]);
    free_matrix(p, &m);
    free_matrix(p, &m2);
}

void test_products(struct pair *p, unsigned rounds)
{
    for (int t = 0; t < ISO_TYPE_COUNT && p->small; t++) {
        for (unsigned r = 0; r < rounds; r++) {
            const uint32_t n_act = r % 2 ? PICK(p, 1, 1, 2, 7, 8) : PICK(p, 9, 31, 32, 33, 40);
            test_product(p, (enum iso_type)t, n_act, PICK(p, 1, 15, 16, 17, 33, 63, 64, 65, 70),
                         pick_cols(p, (enum iso_type)t), 0);
        }
        test_product(p, (enum iso_type)t, 1, 70, 2304, 0); /* more columns than one pass of a simdgroup */
    }
    for (int t = 0; t < ISO_TYPE_COUNT && !p->small; t++) {
        for (unsigned r = 0; r < rounds; r++) {
            const uint32_t n_act = r % 2 ? PICK(p, 1, 2, 3, 4, 5, 7, 8) : PICK(p, 9, 16, 17, 63, 64, 65, 127, 128, 129, 200, 256);
            test_product(p, (enum iso_type)t, n_act, PICK(p, 1, 31, 32, 33, 64, 100, 127, 128, 128, 129, 200, 256, 257, 300),
                         pick_cols(p, (enum iso_type)t), 0);
        }
        test_product(p, (enum iso_type)t, 8, 64, 19968, 0); /* a row too long for eight at once */
        test_product(p, (enum iso_type)t, 130, 200, 2304, 0);
    }
}

/* The largest codes on both sides: sums that must not leave what an accumulator holds exactly. */
void test_extremes(struct pair *p)
{
    static const int bytes[] = {0x00, 0x7f, 0x80, 0x88, 0xff};
    for (int t = 0; t < ISO_TYPE_COUNT; t++) {
        for (size_t b = 0; b < ISO_COUNT(bytes); b++) {
            fill_byte = bytes[b];
            for (int signs = 1; signs <= 3; signs++) {
                if (p->small) {
                    test_product(p, (enum iso_type)t, signs == 1 ? 1 : 6 * (uint32_t)signs - 8, 17, 512, signs);
                    continue;
                }
                test_product(p, (enum iso_type)t, 16, 128, 512, signs);
                test_product(p, (enum iso_type)t, 3, 64, 512, signs);
            }
        }
    }
    fill_byte = -1;
}

/* Golden vectors: file bytes, activations and products of the specification. */
static void *read_file(const char *dir, const char *name, const char *what, size_t *len)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/golden/vectors/%s%s%s", name, dir, what);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    char *out = malloc(1 << 20);
    *len = fread(out, 1, 1 << 20, f);
    (void)fclose(f);
    return out;
}

void test_golden(struct pair *p, enum iso_type t, const char *edge)
{
    char name[16] = "";
    for (size_t i = 0; iso_type_info(t)->name[i]; i++) {
        const char c = iso_type_info(t)->name[i];
        name[i] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    size_t w_len = 0, x_len = 0, y_len = 0;
    uint8_t *w = read_file(edge, name, ".w.bin", &w_len);
    float *x = read_file(edge, name, ".x.f32", &x_len), *y = read_file(edge, name, ".y.f32", &y_len);
    if (!w || !x || !y) {
        pair_case(p, false, "golden %s%s: file missing", name, edge);
        return;
    }
    const uint32_t n_cols = (uint32_t)(x_len / 12), n_rows = 5;
    for (uint32_t n_act = 3; n_act <= 12; n_act += 9) { /* as a vector product, and four times as a matrix product */
        float *many = malloc(n_act * n_cols * 4);
        for (uint32_t r = 0; r < n_act; r++) memcpy(many + r * n_cols, x + r % 3 * n_cols, n_cols * 4);
        struct both bx = pair_buffer(p, n_act * n_cols * 4, ISO_MEM_DEVICE, many), codes = make_codes(p, n_act, n_cols);
        struct both by = pair_buffer(p, n_act * n_rows * 4, ISO_MEM_DEVICE, NULL);
        struct matrix m = {.bytes = w};
        for (int i = 0; i < 2; i++) {
            m.w[i] = (struct iso_weight){.type = (uint32_t)t, .n_rows = n_rows, .n_cols = n_cols,
                                         .row_bytes = iso_type_row_bytes(t, n_cols), .scale = 1.0f};
            if (p->dev[i]->vt->map(p->dev[i], w, w_len, &m.w[i].data.buffer) != ISO_OK) exit(1);
            if (p->dev[i]->vt->weight(p->dev[i], &m.w[i]) != ISO_OK) exit(1);
        }
        pair_begin(p);
        for (int i = 0; i < 2; i++) {
            p->dev[i]->vt->quantize(p->q[i], &(struct iso_op_quantize){.x = bx.s[i], .codes = codes.s[i], .n = n_cols, .n_rows = n_act});
            p->dev[i]->vt->matmul(p->q[i], &(struct iso_op_matmul){.codes = codes.s[i], .weight = {m.w[i]}, .y = {by.s[i]}, .n_weights = 1, .n_rows = n_act});
        }
        (void)pair_sync(p);
        float got[12 * 5];
        if (p->dev[1]->vt->download(p->dev[1], got, by.s[1], n_act * n_rows * 4) != ISO_OK) exit(1);
        bool good = y_len == 60;
        for (uint32_t r = 0; r < n_act; r++) good = good && memcmp(got + r * n_rows, y + r % 3 * n_rows, n_rows * 4) == 0;
        pair_case(p, good, "golden %s%s, %u rows", name, edge, n_act);
        pair_free(p, bx);
        pair_free(p, by);
        pair_free(p, codes);
        for (int i = 0; i < 2; i++) p->dev[i]->vt->free(p->dev[i], m.w[i].data.buffer);
        free(many);
    }
    free(w);
    free(x);
    free(y);
}
