/* SPDX-License-Identifier: MIT
 * rope.c - rotary angles in f64 without a maths library, so that every host agrees. */
#include "arith/rope.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define LANES 16

static double hlog2(double x)
{
    int e = 0;
    double m = frexp(x, &e); /* exact; m in [0.5, 1) */
    if (m < 0.70710678118654752) {
        m = m * 2.0;
        e = e - 1;
    }
    const double z = (m - 1.0) / (m + 1.0);
    const double z2 = z * z;
    double s = 0.0;
    for (int k = 23; k >= 1; k -= 2) s = s * z2 + 1.0 / k;
    return e + (z * s) * 2.8853900817779268;
}

static double hexp2(double x)
{
    const double n = rint(x);
    const double f = (x - n) * 0.69314718055994531;
    double s = 1.0;
    for (int k = 16; k >= 1; k--) s = 1.0 + (f * s) / k;
    return ldexp(s, (int)n);
}

uint64_t iso_rope_turns(double base, uint32_t i, uint32_t n_rot, double divisor)
{
    double f = hexp2(-(hlog2(base) * (2.0 * i / n_rot)));
    if (divisor != 1.0) f = f / divisor;
    return (uint64_t)(f * (double)2935890503282001226ULL);
}

/* cos and sin of LANES pairs. The same operations for each, side by side: divisions would wait for one another. */
static void angles(float *out, const uint64_t *turns, uint32_t p)
{
    double t[LANES], t2[LANES], s[LANES], c[LANES];
    uint32_t q[LANES];
    for (int i = 0; i < LANES; i++) {
        const uint32_t h = (uint32_t)((p * turns[i]) >> 32);
        q[i] = (h + (1u << 29)) >> 30;
        const int32_t r = (int32_t)(h - (q[i] << 30));
        t[i] = r * 1.4629180792671596e-9;
        t2[i] = t[i] * t[i];
        s[i] = c[i] = 1.0;
    }
    for (int k = 15; k >= 3; k -= 2) {
        for (int i = 0; i < LANES; i++) s[i] = 1.0 - (t2[i] * s[i]) / (k * (k - 1));
    }
    for (int k = 16; k >= 2; k -= 2) {
        for (int i = 0; i < LANES; i++) c[i] = 1.0 - (t2[i] * c[i]) / (k * (k - 1));
    }
    for (int i = 0; i < LANES; i++) {
        s[i] = t[i] * s[i];
        const bool swap = (q[i] & 1) != 0;
        const double cq = swap ? s[i] : c[i];
        const double sq = swap ? c[i] : s[i];
        /* q = 0: (c, s); 1: (-s, c); 2: (-c, -s); 3: (s, -c) */
        const uint32_t quadrant = q[i] & 3;
        out[2 * i] = (float)(quadrant == 1 || quadrant == 2 ? -cq : cq);
        out[2 * i + 1] = (float)(quadrant >= 2 ? -sq : sq);
    }
}

void iso_rope_row(float *out, const uint64_t *turns, uint32_t n, uint32_t p)
{
    uint32_t at = 0;
    for (; n - at >= LANES; at += LANES) angles(out + 2 * at, turns + at, p);
    if (at == n) return;
    uint64_t some[LANES] = {0};
    float got[2 * LANES];
    memcpy(some, turns + at, (n - at) * sizeof(*some));
    angles(got, some, p);
    memcpy(out + 2 * at, got, 2 * (n - at) * sizeof(*got));
}
