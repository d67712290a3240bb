#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check.sh - `make check`: builds, then every test that needs no GPU; ends with "N passed, N failed".
# One line per test with its seconds. Continues after a failure; the status is non-zero if there was one.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
jobs=$(nproc)

fetch() {
    tools/fetch_models.sh all && return
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

# D5: a build that contracts a * b + c must be refused by its own self-check, whatever the level.
contraction_build() {
    local fused=-ffp-contract=fast
    if [ "$(uname -m)" = x86_64 ]; then fused="-mfma $fused"; fi
    make -j"$jobs" BUILD=build/contract CC=gcc CFLAGS=-O1 ISO_CFLAGS="-std=c11 $fused" build/contract/isobit
}
contraction_refused() {
    local rc=0
    ISO=build/contract/isobit iso digest "$(model_file mini-llama)" $GOLDEN/smollm2-135m/short.ids --isa "$1" \
        >"$TMP/out" 2>"$TMP/err" || rc=$?
    cat "$TMP/err"
    [ $rc -eq 1 ] && [ ! -s "$TMP/out" ] && grep -q 'do not compute exact-1' "$TMP/err"
}
if t "build with contraction" contraction_build; then
    for level in "${LEVELS[@]}"; do t "contraction refused $level" contraction_refused "$level"; done
fi
finish
