/* SPDX-License-Identifier: MIT
 * gguf_sniff.c - recognises what people give instead of a GGUF file. */
#include "format/gguf_sniff.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"

#define QUOTE_LEN 48 /* bytes of an unknown text that the message shows */

struct magic {
    const char *bytes;
    size_t len;
    const char *answer;
};

#define OLD_GGML(word)                                                                             \
    "an old GGML model (" word                                                                     \
    "), from before GGUF: convert the original model again, or download"                           \
    " a GGUF version of it"
#define M(bytes, answer)                                                                           \
    {                                                                                              \
        bytes, sizeof(bytes) - 1, answer                                                           \
    }

/* The old magics were written as little-endian words, so they lie backwards in the file. */
static const struct magic g_magics[] = {
    M("lmgg", OLD_GGML("ggml")),
    M("fmgg", OLD_GGML("ggmf")),
    M("tjgg", OLD_GGML("ggjt")),
    M("algg", OLD_GGML("ggla, a LoRA adapter")),
    M("ggml", OLD_GGML("ggml")),
    M("ggmf", OLD_GGML("ggmf")),
    M("ggjt", OLD_GGML("ggjt")),
    M("FUGG", "a big-endian GGUF file: convert it with gguf_convert_endian.py little"),
    M("version https://git-lfs.github.com/spec/",
      "a git-lfs pointer, not the model itself: run git lfs pull, or download the file"),
    M("PK\003\004",
      "a zip archive (a PyTorch checkpoint is one): unpack it, or convert the"
      " checkpoint with convert_hf_to_gguf.py"),
    M("\x1f\x8b", "a gzip file: unpack it first"),
    M("\xfd"
      "7zXZ",
      "an xz file: unpack it first"),
    M("\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
    M("\x80\x02",
      "a Python pickle (an old PyTorch checkpoint): convert it with"
      " convert_hf_to_gguf.py"),
};

static bool starts_with_tag(const uint8_t *data, size_t size, const char *tag)
{
    const size_t len = strlen(tag);
    return size >= len && strncasecmp((const char *)data, tag, len) == 0;
}

static bool is_html(const uint8_t *data, size_t size)
{
    size_t at = 0;
    if (size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0) at = 3; /* byte order mark */
    while (at < size && isspace(data[at])) at++;
    return starts_with_tag(data + at, size - at, "<!doctype") ||
           starts_with_tag(data + at, size - at, "<html") ||
           starts_with_tag(data + at, size - at, "<?xml");
}

/* u64 length of a JSON header, then the header. */
static bool is_safetensors(const uint8_t *data, size_t size)
{
    return size > 9 && data[8] == '{' && iso_get_u64(data) <= size - 8;
}

static bool is_zeros(const uint8_t *data, size_t size)
{
    const size_t n = ISO_MIN(size, 4096);
    for (size_t i = 0; i < n; i++) {
        if (data[i] != 0) return false;
    }
    return true;
}

static size_t text_len(const uint8_t *data, size_t size)
{
    size_t n = 0;
    while (n < size && n < QUOTE_LEN && data[n] >= 0x20 && data[n] < 0x7f) n++;
    return n;
}

static void sniff_unknown(char out[ISO_GGUF_SNIFF_LEN], const uint8_t *data, size_t size)
{
    const size_t n = text_len(data, size);
    if (n == QUOTE_LEN || (n >= 4 && (n == size || data[n] == '\n' || data[n] == '\r'))) {
        (void)snprintf(out, ISO_GGUF_SNIFF_LEN,
                       "a text that begins \"%.*s\", perhaps a server's error message: download the"
                       " file again",
                       (int)n, (const char *)data);
        return;
    }
    char hex[3 * 8 + 1] = "";
    for (size_t i = 0; i < size && i < 8; i++) (void)snprintf(hex + 3 * i, 4, " %02x", data[i]);
    (void)snprintf(out, ISO_GGUF_SNIFF_LEN,
                   "not a known format (first bytes%s): give a GGUF model file", hex);
}

void iso_gguf_sniff(char out[ISO_GGUF_SNIFF_LEN], const uint8_t *data, size_t size)
{
    const char *answer = NULL;
    for (size_t i = 0; answer == NULL && i < ISO_COUNT(g_magics); i++) {
        const struct magic *m = &g_magics[i];
        if (size >= m->len && memcmp(data, m->bytes, m->len) == 0) answer = m->answer;
    }
    if (answer == NULL && size == 0) answer = "an empty file: download it again";
    if (answer == NULL && size < 4 && memcmp(data, "GGUF", size) == 0) {
        answer = "only the first bytes of a GGUF file: download it again";
    }
    if (answer == NULL && is_html(data, size)) {
        answer = "an HTML page, not a model: the link led to a web page; use the download link"
                 " (on Hugging Face /resolve/ instead of /blob/)";
    }
    if (answer == NULL && is_safetensors(data, size)) {
        answer = "a safetensors file: convert the model with convert_hf_to_gguf.py";
    }
    if (answer == NULL && is_zeros(data, size)) {
        answer = "all zeros at the start, as an interrupted download leaves it: download it again";
    }
    if (answer == NULL) {
        sniff_unknown(out, data, size);
        return;
    }
    (void)snprintf(out, ISO_GGUF_SNIFF_LEN, "%s", answer);
}
