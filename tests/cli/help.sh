#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# help.sh - every command explains itself and refuses wrong use with status 2, without a model.
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh

commands=$(iso --help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
t "list of commands" test "$(wc -w <<<"$commands")" -ge 11

# Help goes to stdout, nothing to stderr.
help_of() {
    iso "$@" --help >"$TMP/help" 2>"$TMP/noise" || return 1
    head -n 1 "$TMP/help" | grep -q "^usage: isobit $*" && [ ! -s "$TMP/noise" ]
}
for c in $commands; do
    t "$c --help" help_of "$c"
    t "$c: unknown option" exits 2 'invalid argument: unknown option --no-such-option|usage' iso "$c" --no-such-option
done
for v in init request issue enroll revoke rotate crl renew-ledger list; do t "keys $v --help" help_of keys $v; done
for c in run chat produce inspect tokenize template digest diff bench verify-receipt; do
    t "$c: no arguments" exits 2 "usage: isobit $c" iso "$c"
done

version() { iso --version | grep -Ex 'isobit [0-9.]+ \([0-9a-z-]+\) exact-1'; }
t "--version" version
t "no command" exits 2 '^usage: isobit COMMAND' iso
t "unknown command" exits 2 "no command 'prefil'" iso prefil
t "keys: unknown verb" exits 2 'usage|unknown' iso keys frobnicate
t "keys without a verb" exits 2 'usage: isobit keys' iso keys
loud() { ISO_LOG=loud iso --help; }
t "bad ISO_LOG" exits 2 'loud' loud
finish
