/* SPDX-License-Identifier: MIT
 * rope.h - rotary tables: host only, f64, one fixed order of operations.
 *
 * Source: the specification of exact-1, section 7. Devices receive (cos, sin) rows.
 */
#ifndef ISO_ARITH_ROPE_H
#define ISO_ARITH_ROPE_H

#include <stdint.h>

/* Turns per token of pair i in units of 2^-64: base^(-2i/n_rot) / divisor / 2pi.
 * divisor is f64(rope_freqs.weight[i]) or a linear factor; 1 for none. */
uint64_t iso_rope_turns(double base, uint32_t i, uint32_t n_rot, double divisor);

/* out [n][2]: cos and sin, rounded to f32, of position p for n pairs with that many turns [n] per token. */
void iso_rope_row(float *out, const uint64_t *turns, uint32_t n, uint32_t p);

#endif
