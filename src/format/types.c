/* SPDX-License-Identifier: MIT
 * types.c - tables of the tensor types: supported ones and the names of the others. */
#include "format/types.h"

#include <assert.h>

static const struct iso_type_info g_types[ISO_TYPE_COUNT] = {
#define X(id, name, number, values, bytes) [ISO_TYPE_##id] = {name, number, values, bytes},
    ISO_TYPE_MAP(X)
#undef X
};

/* Each number that ggml ever gave to a tensor type (ggml.h enum ggml_type and its removed members),
 * so that a refusal can name what the file holds. */
static const char *const g_number_names[] = {
    [0] = "F32",     [1] = "F16",         [2] = "Q4_0",        [3] = "Q4_1",        [4] = "Q4_2",
    [5] = "Q4_3",    [6] = "Q5_0",        [7] = "Q5_1",        [8] = "Q8_0",        [9] = "Q8_1",
    [10] = "Q2_K",   [11] = "Q3_K",       [12] = "Q4_K",       [13] = "Q5_K",       [14] = "Q6_K",
    [15] = "Q8_K",   [16] = "IQ2_XXS",    [17] = "IQ2_XS",     [18] = "IQ3_XXS",    [19] = "IQ1_S",
    [20] = "IQ4_NL", [21] = "IQ3_S",      [22] = "IQ2_S",      [23] = "IQ4_XS",     [24] = "I8",
    [25] = "I16",    [26] = "I32",        [27] = "I64",        [28] = "F64",        [29] = "IQ1_M",
    [30] = "BF16",   [31] = "Q4_0_4_4",   [32] = "Q4_0_4_8",   [33] = "Q4_0_8_8",   [34] = "TQ1_0",
    [35] = "TQ2_0",  [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8", [39] = "MXFP4",
    [40] = "NVFP4",  [41] = "Q1_0",
};

#define N_NUMBERS (sizeof(g_number_names) / sizeof(g_number_names[0]))

const struct iso_type_info *iso_type_info(enum iso_type t)
{
    assert((unsigned)t < ISO_TYPE_COUNT);
    return &g_types[t];
}

enum iso_type iso_type_from_number(uint32_t number)
{
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
        if (g_types[t].number == number) return (enum iso_type)t;
    }
    return ISO_TYPE_COUNT;
}

const char *iso_type_number_name(uint32_t number)
{
    return number < N_NUMBERS ? g_number_names[number] : NULL;
}

size_t iso_type_row_bytes(enum iso_type t, size_t n)
{
    const struct iso_type_info *info = iso_type_info(t);
    assert(n % info->block_values == 0);
    return n / info->block_values * info->block_bytes;
}
