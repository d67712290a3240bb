/* SPDX-License-Identifier: MIT
 * utf8_stream.h - UTF-8 check of a text, and a filter that makes valid UTF-8 of a stream of bytes.
 *
 * Tokens may end inside a character. The filter holds such a beginning back until the rest comes,
 * so that a streamed answer is always valid UTF-8 (and JSON). Nothing here allocates.
 * Source: RFC 3629; replacement of maximal subparts as in Unicode 15, section 3.9.
 */
#ifndef ISO_TOKENIZER_UTF8_STREAM_H
#define ISO_TOKENIZER_UTF8_STREAM_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that iso_utf8_stream_push() may write for len bytes: each may become a U+FFFD. */
#define ISO_UTF8_STREAM_ROOM(len) (3 * ((len) + 3))
#define ISO_UTF8_FLUSH_ROOM 3

/* Owned by one thread; all zero is the initial state. */
struct iso_utf8_stream {
    uint8_t held[4];
    uint8_t n_held; /* 0 .. 3 bytes of a character that may still become complete */
};

void iso_utf8_stream_init(struct iso_utf8_stream *s);

/* Writes the complete characters of the held bytes and in [len] to out, U+FFFD for what cannot
 * become one; holds an incomplete end back. Returns the bytes written.
 * Needs: out has room for ISO_UTF8_STREAM_ROOM(len) bytes and does not overlap in. */
size_t iso_utf8_stream_push(struct iso_utf8_stream *s, char *out, const char *in, size_t len);

/* End of the stream: writes one U+FFFD if bytes are held, else nothing. Returns 0 or 3. */
size_t iso_utf8_stream_flush(struct iso_utf8_stream *s, char *out);

/* Length of the longest valid prefix of text [len]: len when all of it is UTF-8. */
size_t iso_utf8_valid_len(const char *text, size_t len);

#endif
