/* SPDX-License-Identifier: MIT
 * test_vocab.c - made vocabularies: what must be refused (case L3), and the merge and the special
 * token search against slow, obvious versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tokenizer/special.h"
#include "tokenizer/spm.h"
#include "tokenizer/tok_file.h"

#define MAX_TOKENS 300

static uint64_t g_seed;

static uint32_t next_random(uint64_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 33) % below;
}

/* A vocabulary in the making: the llama kind with scores, or gpt2 with merges. */
struct made {
    const char *model, *pre;
    const char *token[MAX_TOKENS];
    int32_t type[MAX_TOKENS];
    float score[MAX_TOKENS];
    size_t n_tokens, n_types, n_scores;
    enum iso_gguf_value type_type, score_type;
    const char *merge[16];
    size_t n_merges;
    uint32_t bos;
};

static void add_token(struct made *m, const char *text, int32_t type, float score)
{
    assert_true(m->n_tokens < MAX_TOKENS);
    m->token[m->n_tokens] = text;
    m->type[m->n_tokens] = type;
    m->score[m->n_tokens] = score;
    m->n_types = m->n_scores = ++m->n_tokens;
}

static struct made make_spm(void)
{
    struct made m = {
        .model = "llama", .type_type = ISO_GGUF_I32, .score_type = ISO_GGUF_F32, .bos = 1};
    add_token(&m, "<unk>", ISO_TOKEN_UNKNOWN, 0);
    add_token(&m, "<s>", ISO_TOKEN_CONTROL, 0);
    add_token(&m, "</s>", ISO_TOKEN_CONTROL, 0);
    add_token(&m, "a", ISO_TOKEN_NORMAL, -3);
    add_token(&m, "b", ISO_TOKEN_NORMAL, -4);
    add_token(&m, "ab", ISO_TOKEN_NORMAL, -1);
    return m;
}

static struct made make_bpe(void)
{
    struct made m = {.model = "gpt2", .pre = "gpt-2", .type_type = ISO_GGUF_I32, .bos = 0};
    add_token(&m, "<|endoftext|>", ISO_TOKEN_CONTROL, 0);
    add_token(&m, "a", ISO_TOKEN_NORMAL, 0);
    add_token(&m, "b", ISO_TOKEN_NORMAL, 0);
    add_token(&m, "ab", ISO_TOKEN_NORMAL, 0);
    m.merge[0] = "a b";
    m.n_merges = 1;
    return m;
}

static size_t array_bytes(enum iso_gguf_value type, size_t n)
{
    return type == ISO_GGUF_U8 ? n : type == ISO_GGUF_F64 || type == ISO_GGUF_I64 ? 8 * n : 4 * n;
}

static struct iso_gguf *write_made(const struct made *m)
{
    struct tok_file f;
    double room[2 * MAX_TOKENS] = {0}; /* declared types may be wider than the values */
    tok_file_init(&f);
    tok_file_string(&f, "general.architecture", "llama");
    if (m->model) tok_file_string(&f, "tokenizer.ggml.model", m->model);
    if (m->pre) tok_file_string(&f, "tokenizer.ggml.pre", m->pre);
    tok_file_strings(&f, "tokenizer.ggml.tokens", m->token, m->n_tokens);
    iso_copy_le(room, m->type, ISO_COUNT(m->type), sizeof(m->type[0]));
    if (m->n_types) {
        tok_file_array(&f, "tokenizer.ggml.token_type", m->type_type, m->n_types, room,
                       array_bytes(m->type_type, m->n_types));
    }
    iso_copy_le(room, m->score, ISO_COUNT(m->score), sizeof(m->score[0]));
    if (m->score_type && m->n_scores) {
        tok_file_array(&f, "tokenizer.ggml.scores", m->score_type, m->n_scores, room,
                       array_bytes(m->score_type, m->n_scores));
    }
    if (m->n_merges) tok_file_strings(&f, "tokenizer.ggml.merges", m->merge, m->n_merges);
    tok_file_u32(&f, "tokenizer.ggml.bos_token_id", m->bos);
    struct iso_gguf *g = tok_file_open(&f);
    assert_non_null(g);
    return g;
}

static struct iso_tokenizer *load_made(const struct made *m)
{
    struct iso_gguf *g = write_made(m);
    struct iso_tokenizer *t = NULL;
    if (iso_tokenizer_new(&t, g) != ISO_OK) fail_msg("%s", iso_err_detail());
    iso_gguf_close(g);
    return t;
}

static void refuse(const struct made *m, enum iso_err err, const char *words)
{
    struct iso_gguf *g = write_made(m);
    struct iso_tokenizer *t = NULL;
    assert_int_equal(iso_tokenizer_new(&t, g), err);
    assert_null(t);
    if (strstr(iso_err_message(), words) == NULL)
        fail_msg("'%s' lacks '%s'", iso_err_message(), words);
    iso_gguf_close(g);
}

static void test_good_ones(void **state)
{
    (void)state;
    struct made m = make_spm();
    struct iso_tokenizer *t = load_made(&m);
    assert_string_equal(tok_ids(t, "aab", 3, 0), "the vocabulary has no token for byte 0xe2");
    iso_tokenizer_free(t);
    m = make_bpe();
    t = load_made(&m);
    assert_string_equal(tok_ids(t, "aabab", 5, 0), "1 3 3");
    assert_string_equal(tok_ids(t, "abc", 3, 0), "the vocabulary has no token for byte 0x63");
    iso_tokenizer_free(t);
    add_token(&m, "<0x63>", ISO_TOKEN_BYTE, 0); /* byte fallback */
    add_token(&m, "a", ISO_TOKEN_NORMAL, 0);    /* a second one of this text is never made */
    t = load_made(&m);
    assert_string_equal(tok_ids(t, "abca", 4, 0), "3 4 1");
    struct iso_buf out;
    iso_buf_init(&out, 8);
    assert_int_equal(iso_tokenizer_piece(&out, t, 4, false), ISO_OK);
    assert_int_equal(iso_tokenizer_piece(&out, t, 5, false), ISO_OK);
    assert_string_equal((const char *)out.data, "ca");
    iso_buf_deinit(&out);
    iso_tokenizer_free(t);
    iso_tokenizer_free(NULL);
}

/* T6: the parts of "</s>" are tokens, and its score is the best of all. */
static void test_no_control_by_score(void **state)
{
    (void)state;
    struct made m = make_spm();
    static const char *const part[] = {"<", "/", "s", ">", "</", "s>", "\xE2\x96\x81"};
    for (size_t i = 0; i < ISO_COUNT(part); i++) add_token(&m, part[i], ISO_TOKEN_NORMAL, -2);
    struct iso_tokenizer *t = load_made(&m);
    assert_string_equal(tok_ids(t, "a</s>b", 6, 0), "12 3 10 11 4");
    assert_string_equal(tok_ids(t, "a</s>b", 6, ISO_TOKENIZE_SPECIAL), "12 3 2 12 4");
    iso_tokenizer_free(t);
}

static void test_array_types(void **state) /* L3 */
{
    (void)state;
    struct made m = make_spm();
    m.score_type = ISO_GGUF_U8;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.scores");
    m.score_type = ISO_GGUF_F64;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.scores");
    m = make_spm();
    m.type_type = ISO_GGUF_U8;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.token_type");
    m.type_type = ISO_GGUF_I64;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.token_type");
}

static void test_array_lengths(void **state)
{
    (void)state;
    struct made m = make_spm();
    m.n_scores--;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.scores has 5 elements for 6 tokens");
    m = make_spm();
    m.n_types--;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.token_type has 5 elements for 6 tokens");
    m = make_spm();
    m.n_tokens--;
    refuse(&m, ISO_E_FORMAT, "6 elements for 5 tokens");
    m = make_spm();
    m.n_types = 0;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.token_type");
    m = make_spm();
    m.n_scores = 0;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.scores is missing");
    m = make_spm();
    m.n_tokens = m.n_types = m.n_scores = 0;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.tokens");
}

static void test_values(void **state)
{
    (void)state;
    struct made m = make_spm();
    m.type[3] = 7;
    refuse(&m, ISO_E_FORMAT, "token 3 has the unknown type 7");
    m.type[3] = -1;
    refuse(&m, ISO_E_FORMAT, "token 3 has the unknown type -1");
    m = make_spm();
    m.score[4] = NAN;
    refuse(&m, ISO_E_FORMAT, "score 4 is NaN");
    m = make_spm();
    m.bos = 6;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.bos_token_id is 6, the vocabulary has 6 tokens");
    m = make_spm();
    static char huge[ISO_VOCAB_MAX_TOKEN_LEN + 2];
    memset(huge, 'x', sizeof(huge) - 1);
    m.token[4] = huge;
    refuse(&m, ISO_E_LIMIT, "token 4 has 65536 bytes");
}

static void test_kinds(void **state)
{
    (void)state;
    struct made m = make_spm();
    m.model = NULL;
    refuse(&m, ISO_E_UNSUPPORTED, "the file has no tokenizer");
    m.model = "no_vocab";
    refuse(&m, ISO_E_UNSUPPORTED, "the file has no tokenizer");
    m.model = "rwkv";
    refuse(&m, ISO_E_UNSUPPORTED, "tokenizer model rwkv");
    m = make_spm();
    m.pre = "llama4";
    refuse(&m, ISO_E_UNSUPPORTED, "pre-tokenizer llama4 not supported with tokenizer model llama");
    m = make_bpe();
    m.pre = "default";
    refuse(&m, ISO_E_UNSUPPORTED, "pre-tokenizer default not supported");
    m.pre = NULL;
    refuse(&m, ISO_E_UNSUPPORTED, "tokenizer.ggml.pre is missing");
}

static void test_merges(void **state)
{
    (void)state;
    static const struct {
        const char *merge, *words;
    } bad[] = {
        {"ab", "line 0 has no two parts"},    {"", "line 0 has no two parts"},
        {"a ", "the right part is not"},      {" b", "line 0 has no two parts"},
        {"x b", "the left part is not"},      {"a x", "the right part is not"},
        {"b a", "the result is not a token"}, {"a b b", "the right part is not"},
    };
    for (size_t i = 0; i < ISO_COUNT(bad); i++) {
        struct made m = make_bpe();
        m.merge[0] = bad[i].merge;
        refuse(&m, ISO_E_FORMAT, bad[i].words);
    }
    struct made m = make_bpe();
    m.n_merges = 0;
    refuse(&m, ISO_E_FORMAT, "tokenizer.ggml.merges");
    m = make_bpe(); /* a merge must not make control tokens from plain text */
    m.type[3] = ISO_TOKEN_CONTROL;
    struct iso_tokenizer *t = load_made(&m);
    assert_string_equal(tok_ids(t, "ab", 2, 0), "1 2");
    assert_string_equal(tok_ids(t, "ab", 2, ISO_TOKENIZE_SPECIAL), "3");
    iso_tokenizer_free(t);
}

/* Everything that decides about ids is in the digest. */
static void test_digest_covers(void **state)
{
    (void)state;
    struct iso_digest d[9];
    for (size_t i = 0; i < ISO_COUNT(d); i++) {
        struct made m = i < 5 ? make_spm() : make_bpe();
        if (i == 1) m.score[5] = -2;
        if (i == 2) m.token[5] = "ba";
        if (i == 3) m.type[5] = ISO_TOKEN_USER_DEFINED;
        if (i == 4) m.bos = 2;
        if (i == 6) m.pre = "qwen2";
        if (i == 7) m.n_merges = 2, m.merge[1] = "a b";
        if (i == 8) m.token[2] = "c", m.merge[0] = "a c", m.token[3] = "ac";
        struct iso_tokenizer *t = load_made(&m);
        iso_tokenizer_digest(&d[i], t);
        iso_tokenizer_free(t);
        for (size_t k = 0; k < i; k++) assert_memory_not_equal(&d[i], &d[k], sizeof(d[i]));
    }
    struct made m = make_spm();
    m.score[0] = -0.0f; /* equal to 0, so the same tokenizer */
    struct iso_tokenizer *t = load_made(&m);
    iso_tokenizer_digest(&d[1], t);
    assert_memory_equal(&d[1], &d[0], sizeof(d[0]));
    iso_tokenizer_free(t);
}

#define WORD_BYTES 24 /* six letters of up to three bytes and the NUL */

/* A vocabulary of random words over three letters, each once. text is their memory. */
static struct made random_words(char text[][WORD_BYTES],
                                const char *const letter[3],
                                int32_t type,
                                unsigned n_extra,
                                uint64_t *state)
{
    struct made m = make_spm();
    m.n_tokens = 0;
    add_token(&m, "<s>", ISO_TOKEN_CONTROL, 0);
    add_token(&m, "<unk>", ISO_TOKEN_UNKNOWN, 0);
    for (unsigned k = 0; k < 3; k++) add_token(&m, letter[k], ISO_TOKEN_NORMAL, -9);
    for (unsigned i = 0; i < n_extra; i++) {
        const unsigned len = 2 + next_random(state, 5);
        text[i][0] = '\0';
        for (unsigned k = 0; k < len; k++) strcat(text[i], letter[next_random(state, 3)]);
        bool is_new = true;
        for (size_t k = 0; k < m.n_tokens; k++) is_new &= strcmp(m.token[k], text[i]) != 0;
        if (is_new) add_token(&m, text[i], type, -(float)next_random(state, 6));
    }
    return m;
}

/* The definition: join the neighbours with the best score, the leftmost of equals, until none is.
 */
static void
merge_slowly(struct iso_buf *ids, const struct iso_vocab *v, const char *text, size_t len)
{
    size_t start[65];
    size_t n = 0;
    for (size_t i = 0; i < len; i += (uint8_t)text[i] < 0x80 ? 1 : 3) start[n++] = i;
    start[n] = len;
    for (;;) {
        size_t best = n;
        float best_score = 0;
        for (size_t i = 0; i + 2 <= n; i++) {
            const int32_t id = iso_vocab_find(v, text + start[i], start[i + 2] - start[i]);
            if (id < 0 || (best < n && v->score[id] <= best_score)) continue;
            best = i;
            best_score = v->score[id];
        }
        if (best == n) break;
        memmove(start + best + 1, start + best + 2, (n - best - 1) * sizeof(*start));
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        const int32_t id = iso_vocab_find(v, text + start[i], start[i + 1] - start[i]);
        assert_int_equal(iso_buf_append(ids, &id, sizeof(id)), ISO_OK);
    }
}

static void test_merge_order(void **state)
{
    (void)state;
    uint64_t random = g_seed;
    struct iso_merge scratch = {0};
    struct iso_buf got;
    struct iso_buf want;
    struct iso_buf escaped;
    iso_buf_init(&got, 4096);
    iso_buf_init(&want, 4096);
    iso_buf_init(&escaped, 4096);
    for (unsigned round = 0; round < 20; round++) {
        static const char *const letter[] = {"a", "b", "\xE2\x96\x81"};
        char words[100][WORD_BYTES];
        struct made m = random_words(words, letter, ISO_TOKEN_NORMAL, 2 + 4 * round, &random);
        struct iso_gguf *g = write_made(&m);
        struct iso_vocab v;
        struct iso_spm spm;
        assert_int_equal(iso_vocab_init(&v, g), ISO_OK);
        assert_int_equal(iso_spm_init(&spm, &v), ISO_OK);
        for (unsigned k = 0; k < 200; k++) {
            char text[3 * 64 + 1] = "";
            const unsigned n = 1 + next_random(&random, 64);
            for (unsigned i = 0; i < n; i++) strcat(text, letter[next_random(&random, 3)]);
            const size_t len = strlen(text);
            iso_buf_clear(&got);
            iso_buf_clear(&want);
            assert_int_equal(iso_spm_text(&got, &scratch, &escaped, &spm, false, text, len),
                             ISO_OK);
            merge_slowly(&want, &v, text, len);
            assert_int_equal(got.len, want.len);
            assert_memory_equal(got.data, want.data, got.len);
        }
        iso_vocab_deinit(&v);
        iso_gguf_close(g);
    }
    iso_merge_deinit(&scratch);
    iso_buf_deinit(&got);
    iso_buf_deinit(&want);
    iso_buf_deinit(&escaped);
}

static bool is_user(const struct iso_vocab *v, uint32_t id)
{
    return v->type[id] == ISO_TOKEN_USER_DEFINED;
}

struct marks {
    int32_t id[128]; /* token that begins at a byte, -1: text, -2: inside a token */
    size_t n;
};

static enum iso_err on_fragment(void *ctx, int32_t id, const char *text, size_t len)
{
    struct marks *m = ctx;
    (void)text;
    assert_true(len > 0);
    assert_false(id < 0 && m->n > 0 && m->id[m->n - 1] == -1); /* text is in one piece */
    for (size_t i = 0; i < len; i++) m->id[m->n++] = id < 0 ? -1 : i ? -2 : id;
    return ISO_OK;
}

/* The definition: one token after the other, longest first, each from left to right in what is
 * still text. */
static void mark_slowly(struct marks *m, const struct iso_vocab *v, const char *text, size_t len)
{
    m->n = len;
    for (size_t i = 0; i < len; i++) m->id[i] = -1;
    for (size_t size = 8; size > 0; size--) {
        for (uint32_t id = 0; id < v->n; id++) {
            size_t n = 0;
            const uint8_t *token = iso_vocab_text(v, id, &n);
            if (n != size || !is_user(v, id)) continue;
            for (size_t i = 0; i + n <= len; i++) {
                bool fits = memcmp(text + i, token, n) == 0;
                for (size_t k = 0; k < n; k++) fits &= m->id[i + k] == -1;
                for (size_t k = 0; fits && k < n; k++) m->id[i + k] = k ? -2 : (int32_t)id;
            }
        }
    }
}

static void test_special_order(void **state)
{
    (void)state;
    uint64_t random = g_seed + 1;
    for (unsigned round = 0; round < 40; round++) {
        static const char *const letter[] = {"a", "b", "c"};
        char words[40][WORD_BYTES];
        struct made m = random_words(words, letter, ISO_TOKEN_USER_DEFINED, 1 + round, &random);
        struct iso_gguf *g = write_made(&m);
        struct iso_vocab v;
        struct iso_special s;
        assert_int_equal(iso_vocab_init(&v, g), ISO_OK);
        assert_int_equal(iso_special_init(&s, &v, is_user), ISO_OK);
        for (unsigned k = 0; k < 200; k++) {
            char text[128];
            struct marks got = {0};
            struct marks want = {0};
            const size_t len = 1 + next_random(&random, sizeof(text));
            for (size_t i = 0; i < len; i++) text[i] = (char)('a' + next_random(&random, 4));
            assert_int_equal(iso_special_split(&s, text, len, on_fragment, &got), ISO_OK);
            mark_slowly(&want, &v, text, len);
            assert_int_equal(got.n, want.n);
            assert_memory_equal(got.id, want.id, len * sizeof(want.id[0]));
        }
        iso_special_deinit(&s);
        iso_vocab_deinit(&v);
        iso_gguf_close(g);
    }
}

int main(int argc, char **argv)
{
    g_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
    print_message("seed %llu\n", (unsigned long long)g_seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_ones),
        cmocka_unit_test(test_array_types),
        cmocka_unit_test(test_no_control_by_score),
        cmocka_unit_test(test_array_lengths),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_digest_covers),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_special_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
