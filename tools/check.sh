#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check.sh - `make check`: builds, then every test that needs no GPU; ends with "N passed, N failed".
# One line per test with its seconds. Continues after a failure; the status is non-zero if there was one.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
jobs=$(nproc)

fetch() {
    bash tools/fetch_models.sh all && return
    echo "models are missing: run tools/fetch_models.sh all"
    return 1
}
t "models: tools/fetch_models.sh all" fetch
t "build" make -j"$jobs" all
BUILD=$(dirname "$(readlink isobit || echo build/none/isobit)")
t "build tests" make -k -j"$jobs" BUILD="$BUILD" $(unit_goals)

unit_tests
for f in tests/cli/*.sh; do counted "$f" timeout -k 10 "$LIMIT" bash "$f"; done

find_levels
t "instruction sets: ${LEVELS[*]}" test "${#LEVELS[@]}" -ge 1
for level in "${LEVELS[@]}"; do
    golden_short "$level"
    golden_mini "$level"
done

fused=-ffp-contract=fast
if [ "$(uname -m)" = x86_64 ]; then fused="-mfma $fused"; fi
contraction_tests "$fused" CC=gcc
finish
