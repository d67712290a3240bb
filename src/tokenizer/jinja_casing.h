/* SPDX-License-Identifier: MIT
 * jinja_casing.h - letters whose upper case is more than one code point (private). */
#ifndef ISO_TOKENIZER_JINJA_CASING_H
#define ISO_TOKENIZER_JINJA_CASING_H

#include <stdint.h>

struct jt_special {
    int32_t cp;
    int32_t upper[3], title[3]; /* ended by 0 when shorter */
};

/* NULL when the simple mapping holds. Thread: any. */
const struct jt_special *iso_jt_special(int32_t cp);

#endif
