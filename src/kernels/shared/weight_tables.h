/* SPDX-License-Identifier: MIT
 * weight_tables.h - integer codes of the table-driven weight types and NVFP4's scales.
 *
 * Source: the specification of exact-1, section 4; OCP Microscaling Formats 1.0 (E2M1, E8M0).
 */
#ifndef ISO_KERNELS_SHARED_WEIGHT_TABLES_H
#define ISO_KERNELS_SHARED_WEIGHT_TABLES_H

#include <stdint.h>

/* IQ4_NL: the sixteen levels of the type's non-linear grid. */
static const int8_t iso_iq4nl_code[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

/* MXFP4 and NVFP4: twice the value of E2M1, bit 3 the sign. */
static const int8_t iso_e2m1_code[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* UE4M3 scale byte of NVFP4 as an integer in units of 2^-9; bit 7 is ignored, 0x7f is 0. */
static inline int32_t iso_ue4m3_units(uint8_t byte)
{
    const int32_t e = byte >> 3 & 15, man = byte & 7, normal = e > 0;
    /* Without branches, so that loops over it become vectors. */
    const int32_t units = (man + 8 * normal) << (e - normal);
    return (byte & 0x7f) == 0x7f ? 0 : units;
}

#endif
