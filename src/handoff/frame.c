/* SPDX-License-Identifier: MIT
 * frame.c - writes and reads frame headers; the table in frame.h is the only list of types. */
#include "handoff/frame.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum offset { AT_TYPE = 4, AT_FLAGS = 5, AT_ZERO = 6, AT_STREAM = 8, AT_LENGTH = 12 };

struct rule {
    const char *name; /* NULL: no such type */
    uint32_t min, max;
    uint8_t flags;
};

static const struct rule RULES[] = {
#define X(name_, code, min_, max_, flags_)                                                         \
    [code] = {.name = #name_, .min = (min_), .max = (max_), .flags = (flags_)},
    ISO_FRAME_MAP(X)
#undef X
};

static const struct rule *find_rule(unsigned type)
{
    return type < ISO_COUNT(RULES) && RULES[type].name ? &RULES[type] : NULL;
}

const char *iso_frame_name(unsigned type)
{
    const struct rule *r = find_rule(type);
    return r ? r->name : "?";
}

static enum iso_err check_type(unsigned type, enum iso_reason *reason)
{
    if (find_rule(type) == NULL)
        ISO_FAIL_REASON(reason, FRAME_TYPE, ISO_E_PROTO, "frame type %u is unknown", type);
    return ISO_OK;
}

static enum iso_err check_flags(unsigned type, unsigned flags, enum iso_reason *reason)
{
    const unsigned known = find_rule(type)->flags;
    if (flags & ~known)
        ISO_FAIL_REASON(reason, FRAME_FLAGS, ISO_E_PROTO, "%s frame: flags 0x%02x, known 0x%02x",
                        iso_frame_name(type), flags, known);
    return ISO_OK;
}

static enum iso_err check_length(unsigned type, uint32_t length, enum iso_reason *reason)
{
    const struct rule *r = find_rule(type);
    if (length < r->min || length > r->max)
        ISO_FAIL_REASON(reason, FRAME_LENGTH, ISO_E_PROTO, "%s frame: %u bytes, allowed %u to %u",
                        r->name, length, r->min, r->max);
    return ISO_OK;
}

enum iso_err iso_frame_check(const struct iso_frame *f, enum iso_reason *reason)
{
    ISO_TRY(check_type(f->type, reason));
    ISO_TRY(check_flags(f->type, f->flags, reason));
    return check_length(f->type, f->length, reason);
}

void iso_frame_encode(uint8_t out[ISO_FRAME_HEADER_LEN], const struct iso_frame *f)
{
    enum iso_reason reason;
    const enum iso_err err = iso_frame_check(f, &reason);
    assert(err == ISO_OK);
    (void)err;
    iso_put_u32(out, ISO_FRAME_MAGIC);
    out[AT_TYPE] = (uint8_t)f->type;
    out[AT_FLAGS] = f->flags;
    iso_put_u16(out + AT_ZERO, 0);
    iso_put_u32(out + AT_STREAM, f->stream);
    iso_put_u32(out + AT_LENGTH, f->length);
}

/* The magic as far as it is here. */
static bool magic_fits(const uint8_t *bytes, size_t len)
{
    uint8_t magic[4];
    iso_put_u32(magic, ISO_FRAME_MAGIC);
    return memcmp(bytes, magic, ISO_MIN(len, sizeof magic)) == 0;
}

enum iso_err
iso_frame_decode(struct iso_frame *out, const uint8_t *bytes, size_t len, enum iso_reason *reason)
{
    if (len > 0 && !magic_fits(bytes, len))
        ISO_FAIL_REASON(reason, FRAME_MAGIC, ISO_E_PROTO, "no frame magic at the start of a frame");
    if (len > AT_TYPE) ISO_TRY(check_type(bytes[AT_TYPE], reason));
    if (len > AT_FLAGS) ISO_TRY(check_flags(bytes[AT_TYPE], bytes[AT_FLAGS], reason));
    if ((len > AT_ZERO && bytes[AT_ZERO]) || (len > AT_ZERO + 1 && bytes[AT_ZERO + 1]))
        ISO_FAIL_REASON(reason, FRAME_FLAGS, ISO_E_PROTO, "%s frame: reserved bytes are not zero",
                        iso_frame_name(bytes[AT_TYPE]));
    /* Incomplete is no failure: no message, so that the last real one stays. */
    if (len < ISO_FRAME_HEADER_LEN) return ISO_E_AGAIN;
    const uint32_t length = iso_get_u32(bytes + AT_LENGTH);
    ISO_TRY(check_length(bytes[AT_TYPE], length, reason));
    *out = (struct iso_frame){.type = (enum iso_frame_type)bytes[AT_TYPE],
                              .flags = bytes[AT_FLAGS],
                              .stream = iso_get_u32(bytes + AT_STREAM),
                              .length = length};
    return ISO_OK;
}
