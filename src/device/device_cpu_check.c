/* SPDX-License-Identifier: MIT
 * device_cpu_check.c - the CPU proves itself at start and says what code will run.
 *
 * Small generated inputs go through every operation; the digest of all outputs is embedded. The
 * digests were made by the reference kernels, which the tests hold against the golden data. A build
 * that contracts or re-orders floating point gives other bits and is refused here.
 */
#include <stdio.h>
#include <string.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "arith/rope.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/os.h"
#include "device/device_cpu.h"
#include "device/program_image.h"

#define N 288      /* columns of block types: a short last block */
#define NK 512     /* columns of superblock types */
#define ROWS 20    /* activation rows: the tiled product and its tail */
#define OUTS 19    /* weight rows */
#define HEAD 64
#define KEYS 150

struct scratch {
    float x[ROWS][NK], w[NK], gate[NK], y[ROWS * 64];
    uint8_t weights[OUTS * 2 * NK];
    uint8_t codes[ROWS * NK * 2 + ROWS * 256 + 1024] __attribute__((aligned(64)));
    uint8_t page[3][160 * HEAD + 512] __attribute__((aligned(64)));
    int16_t q[4][HEAD];
    float q_scale[4], state_o[2][4][HEAD], out[HEAD];
};

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* About uniform in (-1, 1), exact in f32. */
static float unit(uint64_t *s)
{
    return (float)((int32_t)(next(s) % 20001) - 10000) * 1e-4f;
}

/* Random block bytes with scales that are ordinary f16 or E8M0 numbers. */
static void fill_weights(uint8_t *p, enum iso_type t, size_t n_blocks, uint64_t *s)
{
    static const uint8_t f16_at[ISO_TYPE_COUNT][2] = {
        [ISO_TYPE_Q4_1] = {0, 2}, [ISO_TYPE_Q8_0] = {0, 0}, [ISO_TYPE_Q4_K] = {0, 2},
        [ISO_TYPE_Q6_K] = {208, 208}};
    const size_t len = iso_type_info(t)->block_bytes;
    for (size_t b = 0; b < n_blocks; b++, p += len) {
        for (size_t i = 0; i < len; i++) p[i] = (uint8_t)next(s);
        if (t == ISO_TYPE_F16) p[1] = (uint8_t)((p[1] & 0x83) | 0x30);
        else if (t == ISO_TYPE_MXFP4) p[0] = (uint8_t)(120 + p[0] % 8);
        else if (t != ISO_TYPE_NVFP4) {
            for (int k = 0; k < 2; k++) {
                uint8_t *hi = p + f16_at[t][k] + 1;
                *hi = (uint8_t)((*hi & 0x83) | 0x24);
            }
        }
    }
}

static void hash_f32(struct iso_hasher *h, const float *x, size_t n)
{
    iso_hasher_update_le(h, x, n, sizeof(*x));
}

static void quantise(const struct iso_cpu *cpu, struct scratch *k, size_t n, struct iso_hasher *h)
{
    const struct iso_codes c = iso_codes_view(k->codes, ROWS, n);
    for (size_t i = 0; i < ROWS; i++) {
        const struct iso_codes r = iso_codes_rows(&c, i);
        const struct iso_code_row row = {r.code, r.scale, r.sum32};
        const float inv_n = 1.0f / (float)n;
        if (i % 4 == 0) (void)cpu->quantize->quantize(&row, k->x[i], n);
        else if (i % 4 == 1) {
            (void)cpu->quantize->norm_quantize(&row, NULL, k->x[i], k->w, 1e-5f, inv_n, n);
        } else if (i % 4 == 2) {
            (void)cpu->quantize->gate_quantize(&row, NULL, k->x[i], k->gate, n);
        } else {
            const enum iso_glu glu = i % 8 == 3 ? ISO_GLU_SWIGLU : ISO_GLU_GEGLU;
            (void)cpu->quantize->glu_quantize(&row, NULL, k->x[i], k->gate, glu, n);
        }
    }
    for (size_t i = 0; i < ROWS; i++) {
        const struct iso_codes r = iso_codes_rows(&c, i);
        iso_hasher_update_le(h, r.code, n, sizeof(*r.code));
        hash_f32(h, r.scale, (n + 255) / 256);
        iso_hasher_update_le(h, r.sum32, n / 32, sizeof(*r.sum32));
    }
}

/* One product both ways; they must agree before they are hashed. */
static enum iso_err product(const struct iso_cpu *cpu, struct scratch *k, enum iso_type t, size_t n,
                            uint64_t *s, struct iso_hasher *h)
{
    fill_weights(k->weights, t, OUTS * n / iso_type_info(t)->block_values, s);
    const struct iso_matrix w = {t, k->weights, OUTS, n, iso_type_row_bytes(t, n), 1.0f, 0, NULL};
    const struct iso_codes c = iso_codes_view(k->codes, ROWS, n);
    void *panel = NULL, *work = NULL;
    ISO_TRY(iso_mem_alloc(&panel, iso_gemm_panel_bytes(ROWS, n), 1, "self-check"));
    enum iso_err err = iso_mem_alloc(&work, iso_matmul_scratch_bytes(ROWS, n), 1, "self-check");
    float vec[ROWS * OUTS];
    if (err == ISO_OK) {
        cpu->matmul->pack(panel, &c, ROWS, 0, (ROWS + ISO_GEMM_TILE - 1) / ISO_GEMM_TILE);
        cpu->matmul->gemm(k->y, OUTS, panel, ROWS, &w, 0, OUTS, work);
        for (size_t i = 0; i < ROWS; i += ISO_GEMV_MAX) {
            const struct iso_codes part = iso_codes_rows(&c, i);
            cpu->matmul->gemv(vec + i * OUTS, OUTS, &part, ISO_MIN((size_t)ISO_GEMV_MAX, ROWS - i),
                              &w, 0, OUTS, work);
        }
        hash_f32(h, k->y, ROWS * OUTS);
        if (memcmp(vec, k->y, sizeof(vec)) != 0) {
            err = iso_err_raise(ISO_E_SELF_CHECK, __FILE__, __LINE__,
                                "cpu %s: vector and tiled products of %s differ", cpu->level,
                                iso_type_info(t)->name);
        }
    }
    iso_mem_free(panel);
    iso_mem_free(work);
    return err;
}

static enum iso_err attend(const struct iso_cpu *cpu, struct scratch *k, uint64_t *s,
                           struct iso_hasher *h)
{
    const struct iso_heads_args a = {HEAD, HEAD, ISO_ROPE_INTERLEAVED, k->w, 1e-5f, 1.0f / HEAD};
    const struct iso_heads_args b = {HEAD, HEAD / 2, ISO_ROPE_HALVES, NULL, 0, 0};
    float rope[HEAD], v[HEAD];
    uint64_t turns[HEAD / 2];
    for (uint32_t i = 0; i < HEAD / 2; i++) turns[i] = iso_rope_turns(1e4, i, HEAD, 1.0);
    for (uint32_t p = 0; p < KEYS; p++) {
        iso_rope_row(rope, turns, HEAD / 2, p * 509);
        for (size_t i = 0; i < HEAD; i++) v[i] = unit(s) * (p % 3 ? 1.0f : 8.0f);
        uint8_t *page = k->page[p / ISO_PAGE_POSITIONS];
        (void)cpu->heads->k(page, p % ISO_PAGE_POSITIONS, NULL, v, rope, p % 2 ? &a : &b);
        (void)cpu->heads->v(page, p % ISO_PAGE_POSITIONS, v, HEAD);
        (void)cpu->heads->q(k->q[p % 4], &k->q_scale[p % 4], NULL, v, rope, &a);
    }
    iso_hasher_update(h, k->page, sizeof(k->page));
    const uint32_t first[4] = {0, 0, 40, 70}, last[4] = {KEYS - 1, 63, 130, KEYS - 1};
    const uint8_t *pages[3] = {k->page[0], k->page[1], k->page[2]};
    const size_t len = iso_attention_scratch_bytes(4, HEAD);
    void *work = NULL;
    ISO_TRY(iso_mem_alloc(&work, len, 1, "self-check"));
    for (int cap = 0; cap < 2; cap++) {
        const struct iso_attention_args q = {&k->q[0][0], k->q_scale, first, last, 4, HEAD, pages, 0,
                                             0.0028f, cap ? 50.0f : 0.0f, cap ? 0.02f : 0.0f};
        struct iso_attention_state part[4], head = {.empty = 1};
        for (int i = 0; i < 4; i++) part[i] = (struct iso_attention_state){.o = k->state_o[0][i], .empty = 1};
        cpu->attention->segment(part, &q, 0, work);
        for (int i = 0; i < 4; i++) {
            head = (struct iso_attention_state){.o = k->state_o[1][i], .empty = 1};
            cpu->attention->merge(&head, &part[i], HEAD);
            cpu->attention->merge(&head, &part[3 - i], HEAD);
            cpu->attention->finish(k->out, &head, HEAD);
            hash_f32(h, k->out, HEAD);
        }
    }
    iso_mem_free(work);
    return ISO_OK;
}

static void rows(const struct iso_cpu *cpu, struct scratch *k, struct iso_hasher *h)
{
    cpu->norm->norm(k->y, k->x[0], k->w, 1e-5f, 1.0f / N, N);
    cpu->norm->residual_norm(k->y, k->x[1], NULL, 1e-8f, 1.0f / N, N);
    cpu->norm->residual(k->y, k->x[2], N);
    hash_f32(h, k->y, N);
    const struct iso_logits_args a = {0.196116f, 20.0f, 1.0f / 20.0f, 1};
    (void)cpu->logits->logits(k->y, &a, N);
    const uint32_t best = (uint32_t)cpu->logits->argmax(k->y, N);
    hash_f32(h, k->y, N);
    iso_hasher_update_le(h, &best, 1, sizeof(best));
    cpu->embed->embed(k->y, ISO_TYPE_Q4_K, k->weights, 24.0f, 1, 256);
    hash_f32(h, k->y, 256);
}

static enum iso_err run_all(const struct iso_cpu *cpu, struct scratch *k, struct iso_hasher *h)
{
    static const enum iso_type block[] = {ISO_TYPE_Q4_1, ISO_TYPE_Q8_0, ISO_TYPE_MXFP4, ISO_TYPE_F16};
    static const enum iso_type super[] = {ISO_TYPE_NVFP4, ISO_TYPE_Q6_K, ISO_TYPE_Q4_K};
    uint64_t s = 88172645463325252ULL;
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < NK; j++) k->x[i][j] = unit(&s) * (j % 37 == 0 ? 30.0f : 1.0f);
    }
    for (size_t j = 0; j < NK; j++) {
        k->w[j] = 1.0f + 0.5f * unit(&s);
        k->gate[j] = 4.0f * unit(&s);
    }
    quantise(cpu, k, N, h);
    for (size_t i = 0; i < ISO_COUNT(block); i++) ISO_TRY(product(cpu, k, block[i], N, &s, h));
    quantise(cpu, k, NK, h);
    for (size_t i = 0; i < ISO_COUNT(super); i++) ISO_TRY(product(cpu, k, super[i], NK, &s, h));
    ISO_TRY(attend(cpu, k, &s, h));
    rows(cpu, k, h);
    return ISO_OK;
}

/* Digest of all outputs of run_all(). */
static const char expected[] = "e8b9dc70d12d1a4289c68325cf0fa6353d31aa55aebc6452810b2744bc2765d8";

enum iso_err iso_cpu_self_check(struct iso_device *dev)
{
    const struct iso_cpu *cpu = (const struct iso_cpu *)dev;
    volatile float a = 1.0f + 0x1p-12f, minus = -1.0f - 0x1p-11f;
    if (__builtin_fmaf(a, a, minus) != 0x1p-24f) {
        ISO_FAIL(ISO_E_SELF_CHECK, "fmaf of this system rounds twice");
    }
    struct scratch *k = NULL;
    ISO_TRY(iso_mem_alloc((void **)&k, 1, sizeof(*k), "self-check"));
    struct iso_hasher *h = iso_hasher_new();
    struct iso_digest d = {{0}};
    const enum iso_err err = run_all(cpu, k, h);
    iso_hasher_final(h, &d);
    iso_hasher_free(h);
    iso_mem_free(k);
    ISO_TRY(err);
    char hex[ISO_DIGEST_HEX];
    iso_digest_hex(hex, &d);
    if (strcmp(hex, expected) != 0) {
        ISO_FAIL(ISO_E_SELF_CHECK,
                 "cpu %s: the kernels of this build do not compute exact-1 (digest %s, expected %s); "
                 "was it built with contraction or fast maths?",
                 cpu->level, hex, expected);
    }
    return ISO_OK;
}

/* The kernels' machine code and constants are those of the program: its code segment and, where sections
 * can be found, .rodata (tables, shuffles, strings). The level says which of them run. */
void iso_cpu_identity(struct iso_device *dev, struct iso_digest *out)
{
    const struct iso_cpu *cpu = (const struct iso_cpu *)dev;
    struct iso_hasher *h = iso_hasher_new();
    const uint8_t *constants = NULL;
    size_t len = 0;
    char text[64];
    (void)snprintf(text, sizeof(text), "isobit-kernels-1 cpu %s\n", cpu->level);
    iso_hasher_update(h, text, strlen(text));
    if (iso_os_hash_code(h) != ISO_OK) iso_hasher_update(h, "no code", 7);
    if (iso_program_section(&constants, &len, ".rodata") == ISO_OK) iso_hasher_update(h, constants, len);
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}
