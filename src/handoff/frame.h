/* SPDX-License-Identifier: MIT
 * frame.h - the 16-byte frame header of isobit-handoff/1.
 *
 * offset size field
 *      0    4 magic   "IHF1" (49 48 46 31)
 *      4    1 type    enum iso_frame_type
 *      5    1 flags   bits of the type's mask; version 1 defines none
 *      6    2 zero    reserved
 *      8    4 stream  transfer number chosen by the consumer; 0 is the connection itself
 *     12    4 length  bytes of payload that follow
 * All integers little-endian. The payload's form belongs to the type. Every field is checked before
 * one byte of payload is read, so a length never sizes anything before it passed its limit.
 */
#ifndef ISO_HANDOFF_FRAME_H
#define ISO_HANDOFF_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "handoff/reason.h"

#define ISO_FRAME_HEADER_LEN 16        /* bytes */
#define ISO_FRAME_MAGIC 0x31464849u    /* "IHF1" read as a little-endian u32 */
#define ISO_FRAME_PAGES_PREFIX_LEN 20u /* bytes: layer, first head, heads, first page, pages */

/* Payload limits in bytes, one per type, with their reason. */
#define ISO_FRAME_HELLO_MAX (4u << 10)    /* a small JSON object */
#define ISO_FRAME_REQUEST_MAX (8u << 20)  /* JSON plus 4 bytes per id: contexts of 2^20 and more */
#define ISO_FRAME_ACCEPT_MAX (64u << 10)  /* a JSON object, a cut per layer class */
#define ISO_FRAME_REFUSE_MAX (4u << 10)   /* reason and one sentence */
#define ISO_FRAME_PROGRESS_MAX (1u << 10) /* counters; empty is a heartbeat */
#define ISO_FRAME_PAGES_MAX                                                                        \
    (16u << 20)                        /* under 20 ms of 10 GbE: cancel and heartbeat fit between */
#define ISO_FRAME_SEAL_MAX (64u << 20) /* 32 bytes per page: 2 million pages */
#define ISO_FRAME_ACK_MAX (4u << 10)   /* a small JSON object */
#define ISO_FRAME_CANCEL_MAX (1u << 10) /* reason */
#define ISO_FRAME_ERROR_MAX (4u << 10)  /* reason and one sentence */

/* name, code on the wire, least and most payload bytes, mask of the flags that are defined */
#define ISO_FRAME_MAP(X)                                                                           \
    X(HELLO, 1, 2, ISO_FRAME_HELLO_MAX, 0)                                                         \
    X(REQUEST, 2, 2, ISO_FRAME_REQUEST_MAX, 0)                                                     \
    X(ACCEPT, 3, 2, ISO_FRAME_ACCEPT_MAX, 0)                                                       \
    X(REFUSE, 4, 2, ISO_FRAME_REFUSE_MAX, 0)                                                       \
    X(PROGRESS, 5, 0, ISO_FRAME_PROGRESS_MAX, 0)                                                   \
    X(PAGES, 6, ISO_FRAME_PAGES_PREFIX_LEN, ISO_FRAME_PAGES_MAX, 0)                                \
    X(SEAL, 7, 2, ISO_FRAME_SEAL_MAX, 0)                                                           \
    X(ACK, 8, 0, ISO_FRAME_ACK_MAX, 0)                                                             \
    X(CANCEL, 9, 0, ISO_FRAME_CANCEL_MAX, 0)                                                       \
    X(ERROR, 10, 2, ISO_FRAME_ERROR_MAX, 0)

enum iso_frame_type {
#define X(name, code, min, max, flags) ISO_FRAME_##name = (code),
    ISO_FRAME_MAP(X)
#undef X
};

struct iso_frame {
    enum iso_frame_type type;
    uint8_t flags;
    uint32_t stream;
    uint32_t length; /* bytes of payload */
};

/* "PAGES"; "?" for a number that is no type. */
const char *iso_frame_name(unsigned type);

/* ISO_OK when a frame may look like this, whoever made it.
 * Errors: ISO_E_PROTO with *reason FRAME_TYPE, FRAME_FLAGS or FRAME_LENGTH. */
enum iso_err iso_frame_check(const struct iso_frame *f, enum iso_reason *reason) ISO_NODISCARD;

/* Writes the header of a frame that passes iso_frame_check (assert). */
void iso_frame_encode(uint8_t out[ISO_FRAME_HEADER_LEN], const struct iso_frame *f);

/* Reads one header from the start of bytes [len]; an incremental parser.
 *
 * Errors: ISO_E_AGAIN fewer than 16 bytes and no fault in them yet; ISO_E_PROTO with *reason
 *         FRAME_MAGIC, FRAME_TYPE, FRAME_FLAGS or FRAME_LENGTH as soon as the bytes show it. *out
 * is written on ISO_OK only. */
enum iso_err iso_frame_decode(struct iso_frame *out,
                              const uint8_t *bytes,
                              size_t len,
                              enum iso_reason *reason) ISO_NODISCARD;

#endif
