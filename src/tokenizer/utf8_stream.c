/* SPDX-License-Identifier: MIT
 * utf8_stream.c - decoding of UTF-8 by the table of well-formed sequences. */
#include "tokenizer/utf8_stream.h"

#include <string.h>

static const char REPLACEMENT[3] = {'\xEF', '\xBF', '\xBD'};

/* Length of the sequence that lead begins, and the range of its second byte: these ranges exclude
 * overlong forms, surrogates and what is above U+10FFFF (Unicode table 3-7). 0: not a lead byte. */
static unsigned sequence_len(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
}

/* Looks at the beginning of p [len], len > 0: *used bytes form a character (1), cannot become one
 * (-1, the maximal subpart), or are its beginning at the end of the data (0). */
static int classify(const uint8_t *p, size_t len, size_t *used)
{
    uint8_t low = 0;
    uint8_t high = 0;
    const unsigned want = sequence_len(p[0], &low, &high);
    *used = 1;
    if (want == 0) return -1;
    for (unsigned i = 1; i < want; i++) {
        if (i == len) return 0;
        if (p[i] < low || p[i] > high) return -1;
        low = 0x80;
        high = 0xBF;
        *used = i + 1;
    }
    return 1;
}

void iso_utf8_stream_init(struct iso_utf8_stream *s)
{
    *s = (struct iso_utf8_stream){0};
}

size_t iso_utf8_stream_push(struct iso_utf8_stream *s, char *out, const char *in, size_t len)
{
    const uint8_t *p = (const uint8_t *)in;
    size_t n = 0;
    size_t used = 0;
    /* Byte by byte while something is held: at most three rounds. */
    while (s->n_held > 0 && len > 0) {
        s->held[s->n_held] = *p;
        const int state = classify(s->held, s->n_held + 1u, &used);
        if (state < 0) { /* what was held is dead; *p begins anew */
            memcpy(out + n, REPLACEMENT, sizeof(REPLACEMENT));
            n += sizeof(REPLACEMENT);
            s->n_held = 0;
            break;
        }
        s->n_held++;
        p++;
        len--;
        if (state == 0) continue;
        memcpy(out + n, s->held, s->n_held);
        n += s->n_held;
        s->n_held = 0;
    }
    while (len > 0) {
        const int state = classify(p, len, &used);
        if (state == 0) {
            memcpy(s->held, p, len);
            s->n_held = (uint8_t)len;
            break;
        }
        memcpy(out + n, state > 0 ? (const void *)p : (const void *)REPLACEMENT,
               state > 0 ? used : sizeof(REPLACEMENT));
        n += state > 0 ? used : sizeof(REPLACEMENT);
        p += used;
        len -= used;
    }
    return n;
}

size_t iso_utf8_stream_flush(struct iso_utf8_stream *s, char *out)
{
    if (s->n_held == 0) return 0;
    s->n_held = 0;
    memcpy(out, REPLACEMENT, sizeof(REPLACEMENT));
    return sizeof(REPLACEMENT);
}

size_t iso_utf8_valid_len(const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;
    while (i < len) {
        if (p[i] < 0x80) { /* most text; the general way would cost three times as much */
            i++;
            continue;
        }
        size_t used = 0;
        if (classify(p + i, len - i, &used) <= 0) return i;
        i += used;
    }
    return len;
}
