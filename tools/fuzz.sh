#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# fuzz.sh - builds every tests/fuzz/fuzz_*.c with libFuzzer and sanitizers and runs each for a while.
#
# usage: fuzz.sh [SECONDS=60] [NAME...]     as many at once as there are processors
# Inputs: tests/fuzz/corpus/NAME, and what earlier runs found in build/fuzz/found/NAME. A crash is kept
# as build/fuzz/NAME-crash-*; run build/fuzz/tests/fuzz/fuzz_NAME FILE to see it again.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
seconds=${1:-60}; shift
BUILD=build/fuzz
SAN=address,undefined
cc=$(command -v clang || command -v clang-14 || echo clang)
flags=(-O1 -g -std=c11 -Iinclude -Isrc -Itests -D_GNU_SOURCE -ffp-contract=off -fno-sanitize-recover=undefined)
libs=$(pkg-config --cflags --libs libssl libcrypto sqlite3 jansson libpcre2-8 libutf8proc)

# The kernels stay plain: no target calls them, and clang needs many minutes to instrument them.
library() {
    plain_kernels CC="$cc" CFLAGS='-O1 -g' &&
        make -j"$(nproc)" CC="$cc" BUILD=$BUILD CFLAGS='-O1 -g' SAN=fuzzer-no-link,$SAN $BUILD/libisobit.a
}
target() {  # tests/fuzz/*.c without the prefix are helpers of all targets
    mkdir -p $BUILD/tests/fuzz
    local helpers; helpers=$(find tests/fuzz -maxdepth 1 -name '*.c' ! -name 'fuzz_*')
    "$cc" "${flags[@]}" -fsanitize=fuzzer,$SAN -o "$BUILD/tests/fuzz/fuzz_$1" "tests/fuzz/fuzz_$1.c" $helpers \
        $BUILD/libisobit.a $libs -lm -pthread
}
# A target that ran nothing has not passed.
fuzz() {
    local corpus=tests/fuzz/corpus/$1 log=$BUILD/$1.log
    mkdir -p "$BUILD/found/$1"
    if [ ! -d "$corpus" ]; then corpus=; fi
    timeout -k 10 $((seconds + 120)) "$BUILD/tests/fuzz/fuzz_$1" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$BUILD/$1-" "$BUILD/found/$1" $corpus \
        >"$log" 2>&1 || { tail -n 40 "$log"; return 1; }
    grep -Eq '^stat::number_of_executed_units: *[1-9]' "$log" || { tail "$log"; echo "nothing was executed"; return 1; }
}

t "fuzz: library" library || finish
names=("$@")
if [ $# -eq 0 ]; then for f in tests/fuzz/fuzz_*.c; do f=${f#tests/fuzz/fuzz_}; names+=("${f%.c}"); done; fi
t "fuzz: targets" test ${#names[@]} -ge 1
running=0
for n in "${names[@]}"; do
    t "fuzz: build $n" target "$n" || continue
    (fuzz "$n" >"$TMP/fuzz-$n.out"; echo $? >"$TMP/fuzz-$n.rc") &
    running=$((running + 1))
    if [ $running -ge "$(nproc)" ]; then wait -n; running=$((running - 1)); fi
done
wait
for f in "$TMP"/fuzz-*.rc; do
    n=${f#"$TMP"/fuzz-}; n=${n%.rc}
    units=$(sed -n 's/^stat::number_of_executed_units: *//p' "$BUILD/$n.log")
    t "fuzz: $n, $seconds s, ${units:-no} inputs" eval 'cat "$TMP/fuzz-$n.out"; exit "$(cat "$f")"'
done
finish
