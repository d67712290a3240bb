/* SPDX-License-Identifier: MIT
 * mapped.h - a file mapped read-only that may shrink without killing the process.
 *
 * Reading a mapped page that the file no longer has raises SIGBUS. The guard in mapped.c answers it
 * with zeros and a flag, so a reader runs on with wrong values and learns of it from
 * iso_mapped_check() before it uses the result. Addresses outside these mappings go to the handler
 * that was there before.
 */
#ifndef ISO_FORMAT_MAPPED_H
#define ISO_FORMAT_MAPPED_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct iso_mapped; /* immutable after open; any thread may read and check */

/* What a file was when it was opened: two files with equal identity hold equal bytes, unless
 * someone writes in place and sets the time back. */
struct iso_file_identity {
    uint64_t device;
    uint64_t inode;
    uint64_t size_bytes;
    int64_t mtime_ns; /* since 1970 UTC */
};

/* Maps the whole of a regular file. The first call of the process installs the SIGBUS handler.
 *
 * Owner:  *out is owned by the caller, free with iso_mapped_close(). Keeps one file descriptor.
 * Errors: ISO_E_IO (path, reason). */
enum iso_err iso_mapped_open(struct iso_mapped **out, const char *path) ISO_NODISCARD;

/* No thread may read the mapping any more; NULL is fine. */
void iso_mapped_close(struct iso_mapped *m);

/* Never NULL, also for an empty file; page-aligned when size_bytes > 0. */
const uint8_t *iso_mapped_data(const struct iso_mapped *m);
size_t iso_mapped_size(const struct iso_mapped *m);
const char *iso_mapped_path(const struct iso_mapped *m);
struct iso_file_identity iso_mapped_identity(const struct iso_mapped *m);

/* Whether every byte read so far came from the file as it was opened.
 *
 * Errors: ISO_E_IO naming the file and its old and new size: it shrank, a page could not be read,
 * or it was written in place. A file that was replaced by rename is fine: the mapping keeps the old
 * one. */
enum iso_err iso_mapped_check(const struct iso_mapped *m) ISO_NODISCARD;

#endif
