/* SPDX-License-Identifier: MIT
 * philox.h - the counter-based random numbers of the sampler.
 *
 * A number is a function of seed and position alone, so a rewound or moved session draws the same.
 * Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), Philox4x32-10.
 */
#ifndef ISO_ENGINE_PHILOX_H
#define ISO_ENGINE_PHILOX_H

#include <stdint.h>

#define ISO_PHILOX_ROUNDS 10

/* out [4] = Philox4x32-10 of counter [4] under key [2]. */
static inline void iso_philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < ISO_PHILOX_ROUNDS; i++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0; /* the paper's multipliers */
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the paper's key schedule: golden ratio, sqrt(3) - 1 */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
