/* SPDX-License-Identifier: MIT
 * page.h - the KV page: 64 positions of one layer and one KV head, byte for byte.
 *
 * One layout is attention block, allocation unit, wire segment, hash leaf and disk record.
 *   k_hi i8 [64][d] | k_lo u8 [64][d/2] | v i8 [d][64] | k_scale f32 LE [64] | v_scale f32 LE [64]
 * Source: the specification of exact-1, section 9.
 */
#ifndef ISO_ARITH_PAGE_H
#define ISO_ARITH_PAGE_H

#include "arith/lang.h"

#define ISO_PAGE_FORMAT "isobit-page-1"
#define ISO_PAGE_POSITIONS 64
#define ISO_SEGMENT_PAGES 8 /* attention states are merged per 512 positions */
#define ISO_HEAD_MAX 256    /* largest head size */

/* Offsets in bytes for head size d (a multiple of 2; scales stay 4-byte aligned for d % 8 == 0). */
ISO_FN uint32_t iso_page_k_lo(uint32_t d) { return 64u * d; }
ISO_FN uint32_t iso_page_v(uint32_t d) { return 96u * d; }
ISO_FN uint32_t iso_page_k_scale(uint32_t d) { return 160u * d; }
ISO_FN uint32_t iso_page_v_scale(uint32_t d) { return 160u * d + 256u; }
ISO_FN uint32_t iso_page_bytes(uint32_t d) { return 160u * d + 512u; }

/* Largest power of two that divides d: the butterfly's block. */
ISO_FN uint32_t iso_butterfly_block(uint32_t d) { return d & (0u - d); }

#endif
