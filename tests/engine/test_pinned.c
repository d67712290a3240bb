/* SPDX-License-Identifier: MIT
 * test_pinned.c - the tiny models give the same bits everywhere: one thread, no files, any machine.
 *
 * The digests were made by the reference kernels at the commit that equalled all golden data; this
 * is the quick form of that proof for other processors, emulators and compilers. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/tools.h"
#include "kernels/shared/cpu.h"

/* SHA-256 of the logits' digests of 200 tokens, in steps of 77, and the kv-chain. */
static const char *const pinned[N_FAMILIES][2] = {
    {"54537bfb327d5afae2fa5ebadbb224be4f65f260bd176e55faee9f270ed96f25",
     "8d76b323a1435ca81dd9eb7b3a4dfddf96ced38c8bf730c07e6d0d252ac25d86"},
    {"48cd77dfa11799b459cee525c1981b6935310043b33694e78f2748fdbba1754d",
     "610ebe334481efbc8990d0e331cd84a54509517deb007ee0cf7de6261762cabf"},
    {"a13427d290e26b04287e66ab74a4945e4a6c2e6ae7dfeccb6d54f39dd39964bb",
     "f1fdf5f01e431e0916f65cf498067038bf3de758369d6e2ce62614b039c54ca5"},
    {"add4db4495563f9d8dafcba2c69e66bc925afb3aaad9b4aaffa9475a666326b5",
     "5cdc39f4ca57902e9c566dae0d8aa7f6f0c6865d53183ce439f58b18c080ae14"},
    {"0a6d55acff205141453e0ac3896603d84b421591cb7c52c3eb8daa3bb4157b73",
     "e6e0b088070e0ccbb46b8114e53b8a92b3b0887a7a803380a68591410cfaefab"},
};

static void tiny_models_give_the_pinned_bits(void **state)
{
    (void)state;
    enum { N = 200 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (size_t i = 0; iso_cpu_level_at(i) != NULL; i++) {
            iso_engine *e = tools_engine(
                tools_family[f],
                &(struct iso_engine_options){.isa = iso_cpu_level_at(i), .keep_expired = true});
            iso_session *s = tools_session(e);
            int32_t *ids = tools_ids(e, N, 2026);
            struct iso_digest each[N], all;
            char logits[ISO_DIGEST_HEX], chain[ISO_DIGEST_HEX];
            tools_run(s, ids, N, 77, each);
            iso_sha256(&all, each, sizeof(each));
            iso_digest_hex(logits, &all);
            all = tools_chain(s);
            iso_digest_hex(chain, &all);
            if (strcmp(logits, pinned[f][0]) != 0 || strcmp(chain, pinned[f][1]) != 0) {
                fail_msg("%s at %s:\n{\"%s\",\n \"%s\"},", tools_family[f], iso_cpu_level_at(i),
                         logits, chain);
            }
            free(ids);
            iso_session_free(s);
            iso_engine_close(e);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny_models_give_the_pinned_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
