/* SPDX-License-Identifier: MIT
 * identity.c - what two engines must have in common: digests of weights, tokenizer, pages, policy.
 *
 * Each digest is SHA-256 over a text or byte sequence that docs/handoff.md writes down. The weights
 * digest reads the whole file, so it is kept in the user's cache under the file's stamp (device,
 * inode, size, mtime): a changed file has another stamp.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"

#define HASH_PIECE (4u << 20) /* bytes between two progress calls */

static void hash_text(struct iso_hasher *h, const char *fmt, ...) ISO_PRINTF(2, 3);

static void hash_text(struct iso_hasher *h, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    iso_hasher_update(h, line, ISO_MIN((size_t)(n < 0 ? 0 : n), sizeof(line) - 1));
}

/* The bits of a float as text: exact and the same everywhere. */
static uint32_t bits(float x)
{
    return iso_as_u32(x);
}

static void hash_hparams(struct iso_hasher *h, const struct iso_model *m)
{
    const struct iso_hparams *p = &m->hp;
    hash_text(h, "isobit-weights-1\nfamily %s\n", m->family->name);
    hash_text(h, "layers %u embd %u ff %u heads %u kv %u dim %u vocab %u rot %u window %u\n",
              p->n_layers, p->n_embd, p->n_ff, p->n_heads, p->n_kv_heads, p->head_dim, p->n_vocab,
              p->n_rot, p->window);
    hash_text(h, "eps %08x post %08x base %08x window_base %08x factor %08x\n", bits(p->eps),
              bits(p->post_eps), bits(p->base_full), bits(p->base_window), bits(p->rope_factor));
    hash_text(h, "c %08x cap %08x logit %d %08x cap %08x\nwindow_layers ", bits(p->attention_c),
              bits(p->attention_cap), p->has_logit_scale, bits(p->logit_scale), bits(p->logit_cap));
    for (uint32_t l = 0; l < p->n_layers; l++) hash_text(h, "%d", p->layer_window[l]);
    hash_text(h, "\n");
}

static enum iso_err hash_tensor(struct iso_hasher *h, const struct iso_gguf_tensor *t,
                                uint64_t *done, uint64_t total, const struct iso_progress *progress)
{
    hash_text(h, "tensor %s %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %zu\n", t->name,
              iso_type_info(t->type)->name, t->dims[0], t->dims[1], t->dims[2], t->dims[3],
              t->size_bytes);
    for (size_t at = 0; at < t->size_bytes; at += HASH_PIECE) {
        const size_t n = ISO_MIN((size_t)HASH_PIECE, t->size_bytes - at);
        iso_hasher_update(h, t->data + at, n);
        *done += n;
        if (progress && progress->fn && progress->fn(progress->arg, *done, total)) {
            ISO_FAIL(ISO_E_CANCELLED, "weights digest stopped at %" PRIu64 " of %" PRIu64 " bytes",
                     *done, total);
        }
    }
    return ISO_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct iso_gguf_tensor *const *x = a;
    const struct iso_gguf_tensor *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Tensors in the order of their names, so that a re-packed or split file has the same digest. */
static enum iso_err hash_weights(struct iso_digest *out, const struct iso_engine *e,
                                 const struct iso_progress *progress)
{
    const size_t n = iso_gguf_n_tensors(e->file);
    const struct iso_gguf_tensor **sorted = iso_xalloc(n, sizeof(*sorted));
    uint64_t done = 0, total = 0;
    for (size_t i = 0; i < n; i++) {
        sorted[i] = iso_gguf_tensor(e->file, i);
        total += sorted[i]->size_bytes;
    }
    qsort(sorted, n, sizeof(struct iso_gguf_tensor *), by_name);
    struct iso_hasher *h = iso_hasher_new();
    hash_hparams(h, e->model);
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < n && err == ISO_OK; i++) {
        err = hash_tensor(h, sorted[i], &done, total, progress);
    }
    if (err == ISO_OK) iso_hasher_final(h, out);
    iso_hasher_free(h);
    free(sorted);
    return err;
}

/* --- the cache: one small file per model file, named by the digest of its stamp ----------------- */

static bool cache_path(char *out, size_t len, const struct iso_engine *e, bool make)
{
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    char dir[1024];
    if (xdg && xdg[0]) (void)snprintf(dir, sizeof(dir), "%s/isobit", xdg);
    else if (home && home[0]) (void)snprintf(dir, sizeof(dir), "%s/.cache/isobit", home);
    else return false;
    if (make && mkdir(dir, 0700) != 0 && errno != EEXIST) return false;
    struct iso_digest d;
    const char *stamp = iso_gguf_stamp(e->file);
    iso_sha256(&d, stamp, strlen(stamp));
    char hex[ISO_DIGEST_HEX];
    iso_digest_hex(hex, &d);
    const int n = snprintf(out, len, "%s/weights-%s", dir, hex);
    return n > 0 && (size_t)n < len;
}

/* The cached text is the stamp, a newline, and the digest in hexadecimal. */
static bool cache_read(struct iso_digest *out, const struct iso_engine *e)
{
    char path[1280];
    if (!cache_path(path, sizeof(path), e, false)) return false;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    struct stat st;
    char text[8192] = {0};
    ssize_t n = -1;
    /* Only a file that nobody else can write is believed. */
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 022) == 0) {
        n = read(fd, text, sizeof(text) - 1);
    }
    (void)close(fd);
    const char *stamp = iso_gguf_stamp(e->file);
    const size_t len = strlen(stamp);
    if (n < 0 || (size_t)n != len + ISO_DIGEST_HEX || memcmp(text, stamp, len) != 0) return false;
    return text[len] == '\n' && iso_hex_decode(out->bytes, ISO_DIGEST_LEN, text + len + 1) == ISO_OK;
}

static void cache_write(const struct iso_digest *d, const struct iso_engine *e)
{
    char path[1280], part[1300], hex[ISO_DIGEST_HEX];
    if (!cache_path(path, sizeof(path), e, true)) return;
    (void)snprintf(part, sizeof(part), "%s.%ld", path, (long)getpid());
    const int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return; /* a cache that cannot be written only costs time */
    iso_digest_hex(hex, d);
    struct iso_buf b;
    iso_buf_init(&b, 8192);
    bool ok = iso_buf_printf(&b, "%s\n%s", iso_gguf_stamp(e->file), hex) == ISO_OK;
    ok = ok && write(fd, b.data, b.len) == (ssize_t)b.len;
    iso_buf_deinit(&b);
    ok = close(fd) == 0 && ok;
    if (!ok || rename(part, path) != 0) (void)unlink(part);
}

/* --- the others -------------------------------------------------------------------------------- */

static void hash_page_format(struct iso_digest *out, const struct iso_engine *e)
{
    const struct iso_kv_layout *y = &e->layout;
    struct iso_hasher *h = iso_hasher_new();
    hash_text(h, ISO_PAGE_FORMAT "\npositions %d bytes %u dim %u heads %u layers %u\nclasses ",
              ISO_PAGE_POSITIONS, y->page_bytes, y->head_dim, y->n_kv_heads, y->n_layers);
    for (uint32_t l = 0; l < y->n_layers; l++) hash_text(h, "%d", y->layer_class[l]);
    hash_text(h, "\n");
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}

static void hash_context(struct iso_digest *out, const struct iso_engine *e)
{
    struct iso_hasher *h = iso_hasher_new();
    hash_text(h, "isobit-context-1\nno shift, no truncation\nwindow %u\ntrained %u\n",
              e->layout.window, e->info.n_ctx_train);
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}

static enum iso_err hash_template(struct iso_digest *out, const struct iso_engine *e)
{
    static const char key[] = "tokenizer.chat_template";
    *out = (struct iso_digest){{0}};
    if (!iso_gguf_has(e->file, key)) return ISO_OK;
    struct iso_gguf_str s;
    ISO_TRY(iso_gguf_str(&s, e->file, key));
    iso_sha256(out, s.s, s.len);
    return ISO_OK;
}

static enum iso_err compute(struct iso_engine *e, const struct iso_progress *progress)
{
    struct iso_identity id = {.arithmetic = ISO_ARITHMETIC};
    if (!cache_read(&id.weights, e)) {
        ISO_TRY(hash_weights(&id.weights, e, progress));
        ISO_TRY(iso_gguf_check(e->file));
        cache_write(&id.weights, e);
    }
    if (e->tokenizer) iso_tokenizer_digest(&id.tokenizer, e->tokenizer);
    ISO_TRY(hash_template(&id.chat_template, e));
    hash_page_format(&id.page_format, e);
    hash_context(&id.context, e);
    e->identity = id;
    e->has_identity = true;
    return ISO_OK;
}

enum iso_err iso_engine_identity(struct iso_identity *out, iso_engine *e,
                                 const struct iso_progress *progress)
{
    pthread_mutex_lock(&e->identity_lock);
    const enum iso_err err = e->has_identity ? ISO_OK : compute(e, progress);
    if (err == ISO_OK) *out = e->identity;
    pthread_mutex_unlock(&e->identity_lock);
    return err;
}
