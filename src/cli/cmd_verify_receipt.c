/* SPDX-License-Identifier: MIT
 * cmd_verify_receipt.c - `isobit verify-receipt`: re-checks receipts of hand-offs, line by line. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "handoff/receipt.h"

#define MAX_RECEIPTS (256u << 20) /* bytes of a receipts file */

static int check_lines(const struct iso_buf *b, const struct iso_digest *pin)
{
    int n_bad = 0;
    size_t number = 0;
    const char *p = (const char *)b->data;
    const char *end = p + b->len;
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const size_t len = (size_t)((stop ? stop : end) - p);
        number++;
        if (len > 0) {
            struct iso_receipt_check c = {0};
            if (iso_receipt_verify(&c, p, len, pin) == ISO_OK) {
                (void)printf("%zu: good, %s, %s\n", number, c.producer ? "producer" : "consumer",
                             iso_reason_name(c.reason));
            } else {
                n_bad++;
                (void)printf("%zu: BAD: %s\n", number, iso_err_message());
            }
        }
        p += len + 1;
    }
    if (number == 0) (void)printf("no receipts\n");
    return n_bad;
}

int iso_cmd_verify_receipt(int argc, char **argv)
{
    const char *pin_text = NULL;
    const struct iso_opt options[] = {
        {"pin", 0, ISO_OPT_STRING, &pin_text, "HEX", "SHA-256 of the public key that must have signed (isobit keys list)", 0, 0},
        {0},
    };
    const struct iso_usage usage = {
        "isobit verify-receipt FILE [--pin HEX]",
        "Checks each line of a receipts file: form, the producer's signature over the manifest, and that counts\n"
        "and names agree with it. Exit status 1 when a line is bad.",
        options, NULL};
    const char *args[1] = {0};
    bool help = false;
    struct iso_digest pin;
    struct iso_buf b;
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && help) return 0;
    if (err == ISO_OK && pin_text) err = iso_hex_decode(pin.bytes, ISO_DIGEST_LEN, pin_text);
    if (err != ISO_OK) return iso_cli_fail(err);
    err = iso_cli_read(&b, args[0], MAX_RECEIPTS);
    const int n_bad = err == ISO_OK ? check_lines(&b, pin_text ? &pin : NULL) : 0;
    iso_buf_deinit(&b);
    if (err != ISO_OK) return iso_cli_fail(err);
    return n_bad ? 1 : 0;
}
