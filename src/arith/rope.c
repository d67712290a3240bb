/* SPDX-License-Identifier: MIT
 * rope.c - rotary angles in f64 without a maths library, so that every host agrees. */
#include "arith/rope.h"

#include <math.h>
#include <stdbool.h>

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

void iso_rope_angle(float *cos_out, float *sin_out, uint64_t turns, uint32_t p)
{
    const uint32_t h = (uint32_t)((p * turns) >> 32);
    const uint32_t q = (h + (1u << 29)) >> 30;
    const int32_t r = (int32_t)(h - (q << 30));
    const double t = r * 1.4629180792671596e-9;
    const double t2 = t * t;
    double s = 1.0;
    for (int k = 15; k >= 3; k -= 2) s = 1.0 - (t2 * s) / (k * (k - 1));
    s = t * s;
    double c = 1.0;
    for (int k = 16; k >= 2; k -= 2) c = 1.0 - (t2 * c) / (k * (k - 1));
    const bool swap = (q & 1) != 0;
    const double cq = swap ? s : c;
    const double sq = swap ? c : s;
    /* q = 0: (c, s); 1: (-s, c); 2: (-c, -s); 3: (s, -c) */
    const uint32_t quadrant = q & 3;
    *cos_out = (float)(quadrant == 1 || quadrant == 2 ? -cq : cq);
    *sin_out = (float)(quadrant >= 2 ? -sq : sq);
}
