/* SPDX-License-Identifier: MIT
 * test_tokenizer.c - ids of real vocabularies against llama.cpp and HF, and the reported cases
 * T1-T6. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tok_file.h"
#include "tokenizer/utf8_stream.h"

#define SMOLLM2 "SmolLM2-135M-Instruct.Q4_1.gguf"
#define GEMMA3 "gemma-3-270m-q4_k_m.gguf"
#define LLAMA_SPM "peer/ggml-vocab-llama-spm.gguf"
#define LLAMA_BPE "peer/ggml-vocab-llama-bpe.gguf"

static uint64_t g_seed;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Calls line with each JSON object of a file; returns their number. */
static int each_line(const char *path, void (*line)(const json_t *, void *), void *ctx)
{
    FILE *f = fopen(path, "r");
    if (f == NULL) fail_msg("%s does not open", path);
    char *text = NULL;
    size_t cap = 0;
    int n = 0;
    while (getline(&text, &cap, f) > 0) {
        json_t *j = json_loads(text, JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        line(j, ctx);
        json_decref(j);
        n++;
    }
    free(text);
    (void)fclose(f);
    return n;
}

static void check_line(const json_t *j, void *ctx)
{
    const json_t *text = json_object_get(j, "text");
    const json_t *ids = json_object_get(j, "ids");
    const unsigned flags = json_is_true(json_object_get(j, "special")) ? ISO_TOKENIZE_SPECIAL : 0;
    struct iso_buf want;
    iso_buf_init(&want, 1 << 20);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        assert_int_equal(iso_buf_printf(&want, i ? " %d" : "%d",
                                        (int)json_integer_value(json_array_get(ids, i))),
                         ISO_OK);
    }
    const char *got = tok_ids(ctx, json_string_value(text), json_string_length(text), flags);
    assert_string_equal(got, (const char *)want.data);
    iso_buf_deinit(&want);
}

static void test_golden(void **state)
{
    (void)state;
    struct iso_tokenizer *t = tok_load(SMOLLM2);
    assert_int_equal(each_line("tests/golden/smollm2-135m/tokenizer.jsonl", check_line, t), 50);
    iso_tokenizer_free(t);
    t = tok_load(GEMMA3);
    assert_int_equal(each_line("tests/golden/gemma3-270m/tokenizer.jsonl", check_line, t), 50);
    iso_tokenizer_free(t);
}

/* T1: equal to HF tokenizers around special tokens (tests/tokenizer/make_oracle.py). */
static void test_spm_like_hf(void **state)
{
    (void)state;
    struct iso_tokenizer *t = tok_load(LLAMA_SPM);
    assert_int_equal(each_line("tests/tokenizer/spm.jsonl", check_line, t), 60);
    assert_string_equal(tok_ids(t, "hello</s> world", 15, ISO_TOKENIZE_SPECIAL),
                        "22172 2 29871 3186");
    assert_string_equal(tok_ids(t, "<s>G", 4, ISO_TOKENIZE_SPECIAL), "1 402");
    iso_tokenizer_free(t);
}

static char *read_file(const char *name, const char *suffix)
{
    char path[4096];
    struct iso_gguf *g = tok_open(name);
    (void)snprintf(path, sizeof(path), "%s%s", iso_gguf_path(g), suffix);
    iso_gguf_close(g);
    FILE *f = fopen(path, "r");
    if (f == NULL) fail_msg("%s does not open", path);
    char *text = iso_xalloc(1 << 20, 1);
    const size_t n = fread(text, 1, (1 << 20) - 1, f);
    assert_true(n > 0 && n < (1 << 20) - 1);
    (void)fclose(f);
    return text;
}

/* The .inp and .out files of llama.cpp: texts between marker lines, a line of ids for each. */
static void check_peer(const char *name)
{
    static const char MARK[] = "\n__ggml_vocab_test__\n";
    struct iso_tokenizer *t = tok_load(name);
    char *inp = read_file(name, ".inp");
    char *out = read_file(name, ".out");
    char *text = inp;
    char *want = out;
    int n = 0;
    for (char *end = NULL; (end = strstr(text, MARK)) != NULL; text = end + strlen(MARK)) {
        char *eol = strchr(want, '\n');
        assert_non_null(eol);
        *eol = '\0';
        assert_string_equal(tok_ids(t, text, (size_t)(end - text), 0), want + strspn(want, " "));
        want = eol + 1;
        n++;
    }
    print_message("%s: %d texts\n", name, n);
    assert_true(n > 40);
    free(inp);
    free(out);
    iso_tokenizer_free(t);
}

/* T3 is among these texts. */
static void test_peer_vocabularies(void **state)
{
    (void)state;
    check_peer(LLAMA_SPM);
    check_peer(LLAMA_BPE);
    check_peer("peer/ggml-vocab-gpt-2.gguf");
    check_peer("peer/ggml-vocab-qwen2.gguf");
}

static void test_leading_space(void **state) /* T3 */
{
    (void)state;
    struct iso_tokenizer *t = tok_load(LLAMA_SPM);
    assert_string_equal(tok_ids(t, "This is \xF0\x9F\xA6\x99.cpp", 16, 0),
                        "910 338 29871 243 162 169 156 29889 8223");
    assert_string_equal(tok_ids(t, " Hello world", 12, 0), "29871 15043 3186");
    assert_string_equal(tok_ids(t, "", 0, 0), "");
    assert_string_equal(tok_ids(t, "", 0, ISO_TOKENIZE_BOS), "1");
    assert_string_equal(tok_ids(t, "   ", 3, 0), "268");
    assert_string_equal(tok_ids(t, "\t\n", 2, 0), "29871 12 13");
    iso_tokenizer_free(t);
}

struct words {
    const char *text;
    const json_t *want;
    size_t n;
    size_t done;
};

static enum iso_err on_word(void *ctx, const char *word, size_t len)
{
    struct words *w = ctx;
    const json_t *want = json_array_get(w->want, w->n++);
    assert_ptr_equal(word, w->text + w->done);
    if (want == NULL || json_string_length(want) != len ||
        memcmp(json_string_value(want), word, len) != 0) {
        fail_msg("'%s': word %zu is '%.*s'", w->text, w->n - 1, (int)len, word);
    }
    w->done += len;
    return ISO_OK;
}

static void check_words(const json_t *j, void *ctx)
{
    (void)ctx;
    const char *pre = json_string_value(json_object_get(j, "pre"));
    const json_t *text = json_object_get(j, "text");
    struct words w = {.text = json_string_value(text), .want = json_object_get(j, "words")};
    struct iso_pretokenizer *p = NULL;
    assert_int_equal(iso_pretokenizer_new(&p, pre, strlen(pre)), ISO_OK);
    assert_int_equal(iso_pretokenizer_split(p, w.text, json_string_length(text), on_word, &w),
                     ISO_OK);
    assert_int_equal(w.n, json_array_size(w.want));
    iso_pretokenizer_free(p);
}

static void test_words_like_hf(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/tokenizer/words.jsonl", check_words, NULL), 325);
}

static void check_refused(const char *name, const char *word)
{
    struct iso_gguf *g = tok_open(name);
    struct iso_tokenizer *t = NULL;
    assert_int_equal(iso_tokenizer_new(&t, g), ISO_E_UNSUPPORTED);
    assert_null(t);
    assert_non_null(strstr(iso_err_message(), word));
    assert_non_null(strstr(iso_err_message(), "not "));
    iso_gguf_close(g);
}

/* T2: what is not known is refused by name, never guessed. */
static void test_unknown_is_refused(void **state)
{
    (void)state;
    check_refused("peer/ggml-vocab-gemma-4.gguf", "gemma4");
    check_refused("peer/ggml-vocab-command-r.gguf", "pre-tokenizer command-r not supported");
    check_refused("peer/ggml-vocab-falcon.gguf", "pre-tokenizer falcon not supported");
    check_refused("peer/ggml-vocab-qwen35.gguf", "pre-tokenizer qwen35 not supported");
    check_refused("peer/ggml-vocab-deepseek-llm.gguf", "pre-tokenizer deepseek-llm not supported");
    check_refused("peer/ggml-vocab-bert-bge.gguf", "bert");
    check_refused("peer/ggml-vocab-aquila.gguf", "tokenizer.ggml.pre is missing");
}

/* T5: one BOS, whoever asks for it. */
static void test_one_bos(void **state)
{
    (void)state;
    struct iso_tokenizer *t = tok_load(LLAMA_BPE);
    const unsigned both = ISO_TOKENIZE_BOS | ISO_TOKENIZE_SPECIAL;
    assert_true(iso_tokenizer_adds_bos(t));
    assert_string_equal(tok_ids(t, "hi", 2, ISO_TOKENIZE_BOS), "128000 6151");
    assert_string_equal(tok_ids(t, "hi", 2, ISO_TOKENIZE_SPECIAL), "6151");
    assert_string_equal(tok_ids(t, "<|begin_of_text|>hi", 19, both), "128000 6151");
    assert_string_equal(tok_ids(t, "<|begin_of_text|>hi", 19, ISO_TOKENIZE_SPECIAL), "128000 6151");
    iso_tokenizer_free(t);

    t = tok_load(SMOLLM2); /* add_bos_token is false */
    assert_false(iso_tokenizer_adds_bos(t));
    assert_string_equal(tok_ids(t, "x", 1, both), "104");
    iso_tokenizer_free(t);
}

/* Appends behind what is there; a failure takes everything back. */
static void test_append_and_limit(void **state)
{
    (void)state;
    struct iso_tokenizer *t = tok_load(LLAMA_BPE);
    struct iso_buf ids;
    iso_buf_init(&ids, 5 * sizeof(int32_t));
    const int32_t seven = 7;
    assert_int_equal(iso_buf_append(&ids, &seven, sizeof(seven)), ISO_OK);
    assert_int_equal(iso_tokenize(&ids, t, "hi", 2, ISO_TOKENIZE_BOS), ISO_OK);
    const int32_t want[] = {7, 128000, 6151};
    assert_int_equal(ids.len, sizeof(want));
    assert_memory_equal(ids.data, want, sizeof(want));
    assert_int_equal(iso_tokenize(&ids, t, "one two three", 13, 0), ISO_E_LIMIT);
    assert_int_equal(ids.len, sizeof(want));
    assert_memory_equal(ids.data, want, sizeof(want));
    iso_buf_deinit(&ids);
    iso_tokenizer_free(t);
}

/* T6: with specials off no text of any control token becomes a control token. */
static void check_no_injection(const char *name)
{
    struct iso_tokenizer *t = tok_load(name);
    struct iso_buf ids;
    iso_buf_init(&ids, 1 << 20);
    for (int32_t id = 0; id < (int32_t)iso_tokenizer_n_vocab(t); id++) {
        if (!iso_tokenizer_is_control(t, id)) continue;
        size_t len = 0;
        const char *text = iso_tokenizer_token_text(t, id, &len);
        iso_buf_clear(&ids);
        assert_int_equal(iso_tokenize(&ids, t, text, len, 0), ISO_OK);
        for (size_t i = 0; i < ids.len; i += sizeof(int32_t)) {
            int32_t got = 0;
            memcpy(&got, ids.data + i, sizeof(got));
            assert_false(iso_tokenizer_is_control(t, got));
        }
        iso_buf_clear(&ids);
        assert_int_equal(iso_tokenize(&ids, t, text, len, ISO_TOKENIZE_SPECIAL), ISO_OK);
        assert_int_equal(ids.len, sizeof(id));
        assert_memory_equal(ids.data, &id, sizeof(id));
    }
    iso_buf_deinit(&ids);
    iso_tokenizer_free(t);
}

static void test_no_injection(void **state)
{
    (void)state;
    check_no_injection(SMOLLM2);
    check_no_injection(GEMMA3);
    check_no_injection(LLAMA_SPM);
    check_no_injection(LLAMA_BPE);
    check_no_injection("peer/ggml-vocab-qwen2.gguf");
}

static size_t random_utf8(char *out, size_t n_chars, uint64_t *state)
{
    size_t len = 0;
    for (size_t i = 0; i < n_chars; i++) {
        const uint64_t r = next_random(state);
        uint32_t c = (uint32_t)(r >> 32) % 0x80;
        if (r % 4 == 1) c = 0x80 + (uint32_t)(r >> 32) % 0x780;
        if (r % 4 == 2) c = 0x800 + (uint32_t)(r >> 32) % 0xD000;
        if (r % 16 == 3) c = 0x10000 + (uint32_t)(r >> 32) % 0x100000;
        if (r % 16 == 7) c = ' ';
        if (c == 0x2581) c = 'x'; /* is a space to the llama kind: it does not come back */
        if (c < 0x80) {
            out[len++] = (char)c;
            continue;
        }
        const unsigned more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static const unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
        out[len++] = (char)(lead[more] | c >> (6 * more));
        for (unsigned k = more; k-- > 0;) out[len++] = (char)(0x80 | (c >> (6 * k) & 0x3F));
    }
    return len;
}

static void check_round_trip(const char *name, bool encodes_all)
{
    struct iso_tokenizer *t = tok_load(name);
    uint64_t state = g_seed;
    struct iso_buf ids;
    struct iso_buf out;
    iso_buf_init(&ids, 1 << 20);
    iso_buf_init(&out, 1 << 20);
    unsigned n_encoded = 0;
    for (unsigned round = 0; round < 300; round++) {
        char text[4 * 64];
        const size_t len = random_utf8(text, round % 64, &state);
        assert_int_equal(iso_utf8_valid_len(text, len), len);
        iso_buf_clear(&ids);
        iso_buf_clear(&out);
        const enum iso_err err = iso_tokenize(&ids, t, text, len, 0);
        if (err == ISO_E_FORMAT && !encodes_all) continue; /* a byte without a token */
        assert_int_equal(err, ISO_OK);
        n_encoded++;
        if (iso_tokenizer_adds_space(t) && len) assert_int_equal(iso_buf_u8(&out, 0), ISO_OK);
        for (size_t i = 0; i < ids.len; i += sizeof(int32_t)) {
            int32_t id = 0;
            memcpy(&id, ids.data + i, sizeof(id));
            assert_int_equal(iso_tokenizer_piece(&out, t, id, true), ISO_OK);
        }
        const size_t skip = iso_tokenizer_adds_space(t) && len ? 2 : 0;
        assert_int_equal(out.len, len + skip);
        assert_memory_equal(out.data + skip, text, len);
    }
    assert_true(n_encoded >= 40);
    iso_buf_deinit(&ids);
    iso_buf_deinit(&out);
    iso_tokenizer_free(t);
}

static void test_round_trip(void **state)
{
    (void)state;
    check_round_trip(LLAMA_BPE, true);
    check_round_trip("peer/ggml-vocab-gpt-2.gguf", true);
    check_round_trip("peer/ggml-vocab-qwen2.gguf", true);
    check_round_trip(SMOLLM2, false);
    check_round_trip(LLAMA_SPM, true);
    check_round_trip(GEMMA3, true);
}

static void test_refused_texts(void **state)
{
    (void)state;
    struct iso_tokenizer *t = tok_load(SMOLLM2);
    assert_string_equal(tok_ids(t, "\x04", 1, 0), "the vocabulary has no token for byte 0x04");
    assert_string_equal(tok_ids(t, "ab\xC3", 3, 0), "text is not UTF-8: byte 0xc3 at offset 2");
    assert_string_equal(tok_ids(t, "a\xED\xA0\x80", 4, 0),
                        "text is not UTF-8: byte 0xed at offset 1");
    struct iso_buf ids;
    iso_buf_init(&ids, 64);
    static char huge[1]; /* only the length is looked at */
    assert_int_equal(iso_tokenize(&ids, t, huge, (size_t)ISO_TOKENIZE_MAX_TEXT + 1, 0),
                     ISO_E_LIMIT);
    iso_buf_deinit(&ids);
    iso_tokenizer_free(t);
    t = tok_load(LLAMA_SPM);
    assert_string_equal(tok_ids(t, "ab\xFF", 3, 0), "text is not UTF-8: byte 0xff at offset 2");
    iso_tokenizer_free(t);
}

static void
check_piece(const struct iso_tokenizer *t, int32_t id, bool special, const char *want, size_t len)
{
    struct iso_buf out;
    iso_buf_init(&out, 64);
    assert_int_equal(iso_tokenizer_piece(&out, t, id, special), ISO_OK);
    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, want, len);
    iso_buf_deinit(&out);
}

static void test_single_tokens(void **state)
{
    (void)state;
    struct iso_tokenizer *t = tok_load(SMOLLM2);
    assert_int_equal(iso_tokenizer_n_vocab(t), 49152);
    assert_int_equal(iso_tokenizer_bos(t), 1);
    assert_int_equal(iso_tokenizer_eos(t), 2);
    assert_int_equal(iso_tokenizer_eot(t), 2);
    assert_int_equal(iso_tokenizer_eom(t), -1);
    assert_true(iso_tokenizer_is_eog(t, 0) && iso_tokenizer_is_eog(t, 2));
    assert_false(iso_tokenizer_is_eog(t, 1) || iso_tokenizer_is_eog(t, -1));
    assert_false(iso_tokenizer_is_eog(t, 49152));
    check_piece(t, 905, false, " world", 6);
    check_piece(t, 116, false, "\xA6", 1);
    check_piece(t, 2, false, "", 0);
    check_piece(t, 2, true, "<|im_end|>", 10);
    struct iso_buf out;
    iso_buf_init(&out, 3);
    assert_int_equal(iso_tokenizer_piece(&out, t, 49152, true), ISO_E_ARG);
    assert_int_equal(iso_tokenizer_piece(&out, t, -1, true), ISO_E_ARG);
    assert_int_equal(iso_tokenizer_piece(&out, t, 905, true), ISO_E_LIMIT);
    assert_int_equal(out.len, 0);
    iso_buf_deinit(&out);
    size_t len = 0;
    assert_memory_equal(iso_tokenizer_token_text(t, 905, &len), "\xC4\xA0world", 7);
    assert_int_equal(len, 7);
    assert_null(iso_tokenizer_token_text(t, -1, &len));
    assert_int_equal(iso_tokenizer_find(t, "<|im_start|>", 12), 1);
    iso_tokenizer_free(t);

    t = tok_load(GEMMA3);
    assert_int_equal(iso_tokenizer_eot(t), 106);
    assert_true(iso_tokenizer_is_eog(t, 1) && iso_tokenizer_is_eog(t, 106));
    assert_false(iso_tokenizer_is_eog(t, iso_tokenizer_find(t, "</s>", 4))); /* HTML here */
    check_piece(t, 1902, false, " world", 6);
    check_piece(t, 478, false, "\xF0", 1);
    iso_tokenizer_free(t);
}

static void digest_of(char hex[ISO_DIGEST_HEX], const char *name)
{
    struct iso_tokenizer *t = tok_load(name);
    struct iso_digest d;
    iso_tokenizer_digest(&d, t);
    iso_digest_hex(hex, &d);
    iso_tokenizer_free(t);
}

/* A change of these values needs a new name in the serialisation: peers compare them. */
static void test_digest(void **state)
{
    (void)state;
    char hex[ISO_DIGEST_HEX];
    digest_of(hex, SMOLLM2);
    assert_string_equal(hex, "f66aebdf2bf8221c452be2a5b434a5a9a13317aa692e6c89a52f6fce0408bc08");
    digest_of(hex, "mini-qwen2.gguf"); /* the same vocabulary in another model */
    assert_string_equal(hex, "f66aebdf2bf8221c452be2a5b434a5a9a13317aa692e6c89a52f6fce0408bc08");
    digest_of(hex, GEMMA3);
    assert_string_equal(hex, "f21f6c5f7fff88a0b2715f313931cc1068c9f628d7cbf4263d7bd44bc06ae0c9");
}

/* No input may be quadratic: 1 MB that merges, that does not, and that is all special tokens. A
 * quadratic loop would take minutes; the limit leaves room for sanitizers. */
static void check_linear(const char *name)
{
    static const char *const UNIT[] = {"x",  " ", "\n", "\xE4\xB8\xAD", "A",
                                       "aB", "'", "<",  "\r\n ",        "1"};
    struct iso_tokenizer *t = tok_load(name);
    const size_t len = 1 << 20;
    char *text = iso_xalloc(len + 8, 1);
    struct iso_buf ids;
    iso_buf_init(&ids, 32 << 20);
    for (size_t u = 0; u < ISO_COUNT(UNIT); u++) {
        const size_t n = strlen(UNIT[u]);
        const size_t whole = len / n * n;
        for (size_t i = 0; i < whole; i++) text[i] = UNIT[u][i % n];
        iso_buf_clear(&ids);
        const int64_t start = iso_clock_ns();
        assert_int_equal(iso_tokenize(&ids, t, text, whole, 0), ISO_OK);
        const int64_t ms = (iso_clock_ns() - start) / ISO_NS_PER_MS;
        if (ms > 10000) fail_msg("%s: 1 MB of '%s' takes %d ms", name, UNIT[u], (int)ms);
    }
    iso_buf_deinit(&ids);
    free(text);
    iso_tokenizer_free(t);
}

static void test_linear_time(void **state)
{
    (void)state;
    check_linear(SMOLLM2);
    check_linear(GEMMA3);
    check_linear(LLAMA_BPE);
}

static enum iso_err add_len(void *ctx, const char *word, size_t len)
{
    size_t *total = ctx;
    (void)word;
    *total += len;
    return ISO_OK;
}

/* The expressions backtrack; on 1 MB of one kind of character each must stay linear and within what
 * PCRE2 allows. */
static void test_words_linear(void **state)
{
    (void)state;
    static const char *const PRE[] = {"smollm", "gpt-2", "llama3", "qwen2", "gpt-4o"};
    static const char *const UNIT[] = {
        "A", "a",  "aB", " ",        "\n",       " \n",          "\t\r",
        "1", "'s", "/",  "\xC3\x89", "\xCC\x81", "\xE4\xB8\xAD", "\xC2\xA0",
    };
    const size_t len = 1 << 20;
    char *text = iso_xalloc(len, 1);
    for (size_t i = 0; i < ISO_COUNT(PRE) * ISO_COUNT(UNIT); i++) {
        const char *unit = UNIT[i / ISO_COUNT(PRE)];
        const char *pre = PRE[i % ISO_COUNT(PRE)];
        const size_t whole = len / strlen(unit) * strlen(unit);
        for (size_t k = 0; k < whole; k++) text[k] = unit[k % strlen(unit)];
        struct iso_pretokenizer *p = NULL;
        assert_int_equal(iso_pretokenizer_new(&p, pre, strlen(pre)), ISO_OK);
        size_t total = 0;
        const int64_t start = iso_clock_ns();
        assert_int_equal(iso_pretokenizer_split(p, text, whole, add_len, &total), ISO_OK);
        const int64_t ms = (iso_clock_ns() - start) / ISO_NS_PER_MS;
        assert_int_equal(total, whole);
        if (ms > 5000) fail_msg("%s: 1 MB of '%s' takes %d ms", pre, unit, (int)ms);
        iso_pretokenizer_free(p);
    }
    free(text);
}

struct job {
    const struct iso_tokenizer *t;
    int n_wrong;
};

static void *tokenize_often(void *arg)
{
    struct job *job = arg;
    const int32_t want[] = {19556, 905};
    for (int i = 0; i < 2000; i++) {
        struct iso_buf ids;
        iso_buf_init(&ids, 64);
        if (iso_tokenize(&ids, job->t, "Hello world", 11, 0) != ISO_OK || ids.len != sizeof(want) ||
            memcmp(ids.data, want, sizeof(want)) != 0) {
            job->n_wrong++;
        }
        iso_buf_deinit(&ids);
    }
    return NULL;
}

static void test_threads_share(void **state)
{
    (void)state;
    struct iso_tokenizer *t = tok_load(SMOLLM2);
    pthread_t thread[4];
    struct job job[4];
    for (int i = 0; i < 4; i++) {
        job[i] = (struct job){.t = t};
        assert_int_equal(pthread_create(&thread[i], NULL, tokenize_often, &job[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(job[i].n_wrong, 0);
    }
    iso_tokenizer_free(t);
}

int main(int argc, char **argv)
{
    g_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
    print_message("seed %llu\n", (unsigned long long)g_seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_spm_like_hf),
        cmocka_unit_test(test_peer_vocabularies),
        cmocka_unit_test(test_leading_space),
        cmocka_unit_test(test_words_like_hf),
        cmocka_unit_test(test_unknown_is_refused),
        cmocka_unit_test(test_one_bos),
        cmocka_unit_test(test_append_and_limit),
        cmocka_unit_test(test_no_injection),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused_texts),
        cmocka_unit_test(test_single_tokens),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_linear_time),
        cmocka_unit_test(test_words_linear),
        cmocka_unit_test(test_threads_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
