/* SPDX-License-Identifier: MIT
 * reason.c - names and texts of the reason codes. */
#include "handoff/reason.h"

#include <string.h>

const char *iso_reason_name(enum iso_reason r)
{
    static const char *const names[ISO_REASON_COUNT] = {
#define X(name, text) [ISO_REASON_##name] = #name,
        ISO_REASON_MAP(X)
#undef X
    };
    return (unsigned)r < ISO_REASON_COUNT ? names[r] : "?";
}

const char *iso_reason_text(enum iso_reason r)
{
    static const char *const texts[ISO_REASON_COUNT] = {
#define X(name, text) [ISO_REASON_##name] = (text),
        ISO_REASON_MAP(X)
#undef X
    };
    return (unsigned)r < ISO_REASON_COUNT ? texts[r] : "unknown reason";
}

enum iso_err iso_reason_from_name(enum iso_reason *out, const char *name)
{
    for (unsigned i = 0; i < ISO_REASON_COUNT; i++) {
        if (strcmp(name, iso_reason_name((enum iso_reason)i)) == 0) {
            *out = (enum iso_reason)i;
            return ISO_OK;
        }
    }
    ISO_FAIL(ISO_E_FORMAT, "unknown reason \"%.40s\"", name);
}
