/* SPDX-License-Identifier: MIT
 * device_metal_hazard.h - which buffers need a barrier before a dispatch, so that no other ones wait.
 *
 * Dispatches of one encoder run concurrently. Two of them may touch the same bytes only if both read, or
 * if a barrier that names the buffer stands between them.
 */
#ifndef ISO_DEVICE_METAL_HAZARD_H
#define ISO_DEVICE_METAL_HAZARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ISO_METAL_RANGES 256 /* ranges remembered since the last barrier of their buffer */

/* Bytes [first, end) of a buffer of the seam. */
struct iso_metal_range {
    uint32_t buffer;
    bool write;
    uint64_t first, end;
};

/* What was used since the last barrier of its buffer. Zeroed is empty. */
struct iso_metal_hazards {
    struct iso_metal_range at[ISO_METAL_RANGES];
    uint32_t n;
};

/* Notes the ranges use [n] of the next dispatch (n <= 64).
 *
 * Returns how many buffers a barrier must name before it; they are in name [ISO_METAL_RANGES], each
 * once. When the memory is full every buffer in it is named: more waiting, never less. */
size_t iso_metal_hazards_note(struct iso_metal_hazards *h, const struct iso_metal_range *use, size_t n,
                              uint32_t *name);

#endif
