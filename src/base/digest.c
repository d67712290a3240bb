/* SPDX-License-Identifier: MIT
 * digest.c - SHA-256 through OpenSSL's EVP. */
#include "base/digest.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

struct iso_hasher {
    EVP_MD_CTX *ctx;
};

static void start(EVP_MD_CTX *ctx)
{
    const int ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL);
    assert(ok == 1);
}

struct iso_hasher *iso_hasher_new(void)
{
    struct iso_hasher *h = iso_xalloc(1, sizeof(*h));
    h->ctx = EVP_MD_CTX_new();
    assert(h->ctx != NULL);
    start(h->ctx);
    return h;
}

void iso_hasher_free(struct iso_hasher *h)
{
    if (h == NULL) return;
    EVP_MD_CTX_free(h->ctx);
    free(h);
}

void iso_hasher_update(struct iso_hasher *h, const void *p, size_t len)
{
    const int ok = EVP_DigestUpdate(h->ctx, p, len);
    assert(ok == 1);
}

void iso_hasher_update_le(struct iso_hasher *h, const void *p, size_t n, size_t size)
{
    if (iso_is_little_endian()) {
        iso_hasher_update(h, p, n * size);
        return;
    }
    uint8_t part[8 * 256];
    const uint8_t *at = p;
    assert(size <= 8);
    for (size_t i = 0; i < n; i += 256) {
        const size_t k = ISO_MIN(n - i, (size_t)256);
        iso_copy_le(part, at + i * size, k, size);
        iso_hasher_update(h, part, k * size);
    }
}

void iso_hasher_final(struct iso_hasher *h, struct iso_digest *out)
{
    unsigned len = 0;
    const int ok = EVP_DigestFinal_ex(h->ctx, out->bytes, &len);
    assert(ok == 1 && len == ISO_DIGEST_LEN);
    start(h->ctx);
}

void iso_sha256(struct iso_digest *out, const void *p, size_t len)
{
    const int ok = EVP_Digest(p, len, out->bytes, NULL, EVP_sha256(), NULL);
    assert(ok == 1);
}

void iso_sha256_f32(struct iso_digest *out, const float *x, size_t n)
{
    struct iso_hasher *h = iso_hasher_new();
    iso_hasher_update_le(h, x, n, sizeof(*x));
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}

void iso_digest_hex(char out[ISO_DIGEST_HEX], const struct iso_digest *d)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < ISO_DIGEST_LEN; i++) {
        out[2 * i] = digit[d->bytes[i] >> 4];
        out[2 * i + 1] = digit[d->bytes[i] & 15];
    }
    out[ISO_DIGEST_HEX - 1] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

enum iso_err iso_hex_decode(uint8_t *out, size_t len, const char *hex)
{
    if (strlen(hex) != 2 * len) {
        ISO_FAIL(ISO_E_FORMAT, "hexadecimal of %zu digits, expected %zu", strlen(hex), 2 * len);
    }
    for (size_t i = 0; i < len; i++) {
        const int hi = hex_value(hex[2 * i]);
        const int lo = hex_value(hex[2 * i + 1]);
        if (hi < 0 || lo < 0) ISO_FAIL(ISO_E_FORMAT, "'%.2s' is not hexadecimal", hex + 2 * i);
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return ISO_OK;
}
