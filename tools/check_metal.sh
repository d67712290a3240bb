#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_metal.sh - `make check-metal`: on a Mac with an Apple GPU, builds and runs every test that needs it.
#
# The Metal backend was written without a Mac: this script is how one proves it. It ends with
# "N passed, N failed" and names the file to send back, whether tests failed or not.
# Needs Xcode's command line tools and what tools/deps.sh installs with Homebrew; make puts that into PATH.
cd "$(dirname "$0")/.." || exit 1
if [ "$(uname -s)" != Darwin ]; then
    echo "FAIL this needs a Mac with an Apple GPU (M1 or later); without one: make check-metal-emulated"
    echo "0 passed, 1 failed"
    exit 1
fi
if [ "${BASH_VERSINFO[0]}" -lt 5 ]; then
    echo "FAIL this is bash $BASH_VERSION, the tests need 5: make deps, make check-metal"
    echo "0 passed, 1 failed"
    exit 1
fi
. tools/golden.sh
BUILD=${BUILD:-build/check-metal} ISO=$BUILD/isobit REPORT=$BUILD/report.txt
mkdir -p "$BUILD"
exec > >(tee "$REPORT") 2>&1

echo "isobit $(git rev-parse HEAD)$(git diff --quiet HEAD || echo ' with changes')"
sw_vers
sysctl -n machdep.cpu.brand_string hw.memsize
system_profiler SPDisplaysDataType | grep -E 'Chipset|Cores|Metal'
clang --version | head -n 1

fetch() { bash tools/fetch_models.sh all || { echo "models are missing: run tools/fetch_models.sh all"; return 1; }; }
t "models: tools/fetch_models.sh all" fetch
host=$(unit_programs 'tests/metal_host/*' | sed "s|^|$BUILD/|")
t "build METAL=1" make -j"$(nproc)" METAL=1 BUILD="$BUILD" "$BUILD/isobit" "$BUILD/tests/cuda/gpu_ops" $host || finish
for f in $host; do counted "$f" timeout -k 10 "$LIMIT" "$f"; done

# What is compiled, and which kernel serves what: the table of src/device/device_metal_table.c.
table() { ISO_LOG=debug iso digest "$(model_file smollm2-135m)" $GOLDEN/smollm2-135m/short.ids -n 1 --device metal; }
t "open, self-check, one position" table
cat "$TMP/log"

for level in concurrent serial; do
    gpu=(--device metal --isa $level)
    for seed in 1 2 3; do
        counted "operations $level, seed $seed" timeout -k 10 "$LIMIT" "$BUILD/tests/cuda/gpu_ops" metal:$level $seed 2
    done
    golden_short $level --device metal
    golden_mini $level --device metal
    for m in smollm2-135m gemma3-270m; do
        g=$GOLDEN/$m
        t "$m short, chunk 7 $level" digest_is $m $g/short.ids $g/short.expect all "${gpu[@]}" --chunk 7
        t "$m long $level" digest_is $m $g/long.ids $g/long.expect all "${gpu[@]}" --chunk 512
    done
    ids=$GOLDEN/smollm2-135m/long.ids
    t "smollm2-135m 600 positions one by one $level" digest_is smollm2-135m $ids $GOLDEN/smollm2-135m/long.expect 600 \
        "${gpu[@]}" --chunk 1
    for a in llama qwen2 qwen3 muse-glimmer; do
        want=$GOLDEN/mini/$a.expect
        t "mini $a, batch 9, chunk 63 $level" digest_is mini-$a $ids $want 200 "${gpu[@]}" --batch 9 --chunk 63
    done
done
t "a CPU's level is an error" exits 1 'of metal: auto, concurrent, serial' iso digest "$(model_file smollm2-135m)" \
    $GOLDEN/smollm2-135m/short.ids -n 1 --device metal --isa avx2
for m in smollm2-135m gemma3-270m; do
    t "rates of $m" iso bench "$(model_file $m)" --device metal
    cat "$TMP/log"
done
echo "please send back: $REPORT"
finish
