/* SPDX-License-Identifier: MIT
 * ids.h - token ids from a file. */
#ifndef ISO_CLI_IDS_H
#define ISO_CLI_IDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct iso_ids {
    int32_t *id; /* [n], owned */
    size_t n;
};

/* Reads decimal ids separated by white space from path ("-" is stdin).
 * Errors: ISO_E_FORMAT not a number (where); ISO_E_ARG none at all; ISO_E_IO. */
enum iso_err iso_ids_read(struct iso_ids *out, const char *path) ISO_NODISCARD;
void iso_ids_free(struct iso_ids *ids);

#endif
