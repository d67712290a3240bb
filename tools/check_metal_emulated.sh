#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_metal_emulated.sh - `make check-metal-emulated`: the Metal device and its kernels on an emulated GPU.
#
# Needs clang++ and python3, no Mac. The host's side over a seam that only remembers, the emulator's own tests,
# each operation against the CPU's with every access checked (bounds, races, missing barriers), then golden
# digests of all models. Two lanes of tests run side by side. What it cannot prove: docs/metal.md.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
BUILD=${BUILD:-build/check-metal-emulated} ISO=$BUILD/isobit
STUBS=tests/metal_stubs
started=$(now_ms)

# seeded SEED CHECK COMMAND...: the emulator's random order, and whether it checks each access.
seeded() { export ISO_METAL_SEED=$1 ISO_METAL_CHECK=$2; shift 2; "$@"; }

# --- the text and the thin Objective-C ----------------------------------------------------------------------

# The declarations of an SDK (140000 or 150000) as far as the file needs them: names and types are checked.
objc() { # SDK FILE
    clang -x objective-c -std=gnu11 -fsyntax-only -fblocks -fno-objc-arc -fobjc-runtime=macosx-11 -Werror -Wall \
        -Wextra -Wshadow -Wconversion -Wno-sign-conversion "-D__MAC_OS_X_VERSION_MAX_ALLOWED=$1" \
        -isystem $STUBS -Iinclude -Isrc "$2"
}
objc_fails() { # what a wrong name or type does to that check
    sed "$1" src/device/metal_gpu_darwin.m >"$TMP/wrong.m"
    ! cmp -s "$TMP/wrong.m" src/device/metal_gpu_darwin.m && ! objc 150000 "$TMP/wrong.m"
}
flat() {
    local f=$TMP/all.metal
    python3 tools/flatten_metal.py "$f" src/kernels/*/*_metal.metal || return 1
    if grep -n '^ *# *include' "$f" | grep -v '<metal_'; then echo "an include is left"; return 1; fi
    sed -n 2,3p "$f" | grep -c '^#pragma METAL fp' | grep -qx 2 || { echo "no pragma in front"; return 1; }
    [ -z "$(sort "$f" | grep '^// ---- ' | uniq -d)" ] || { echo "a file is in twice"; return 1; }
}
flat_refuses() { # an include that only one side of an unknown condition has
    printf '#if FANCY\n#include "arith/prim.h"\n#endif\n' >"$TMP/odd.metal"
    exits 1 'condition that is not known' python3 tools/flatten_metal.py "$TMP/out.metal" "$TMP/odd.metal" &&
        printf '#include "arith/none.h"\n' >"$TMP/odd.metal" &&
        exits 1 'arith/none.h' python3 tools/flatten_metal.py "$TMP/out.metal" "$TMP/odd.metal"
}
flat_decides() { # one side of a known condition, and a header that the other side named first
    local page='#include "arith/page.h"'
    printf '%s\n' '#ifndef __METAL_VERSION__' "$page" A '#elif defined(X)' B '#else' C '#endif' "$page" \
        >"$TMP/odd.metal"
    python3 tools/flatten_metal.py "$TMP/out.metal" "$TMP/odd.metal" 2>/dev/null && return 1  # unknown behind known
    sed -i.old 's/^#elif defined(X)$/#elif defined(__CUDACC__)/' "$TMP/odd.metal"
    python3 tools/flatten_metal.py "$TMP/out.metal" "$TMP/odd.metal" && grep -qx C "$TMP/out.metal" &&
        ! grep -Eqx 'A|B' "$TMP/out.metal" && grep -q ISO_PAGE_POSITIONS "$TMP/out.metal"
}

# --- the lanes ----------------------------------------------------------------------------------------------

# lane NAME FUNCTION: in the background, with counts of its own. join_lanes adds them.
LANES=()
lane() {
    local dir=$TMP/$1; mkdir -p "$dir"
    (TMP=$dir N_PASSED=0 N_FAILED=0; "$2"; echo "$N_PASSED $N_FAILED" >"$dir/counts") &
    LANES+=("$1 $!")
}
join_lanes() {
    local l good bad
    for l in "${LANES[@]}"; do
        wait "${l#* }"
        if read -r good bad <"$TMP/${l% *}/counts"; then
            N_PASSED=$((N_PASSED + good)) N_FAILED=$((N_FAILED + bad))
        else
            N_FAILED=$((N_FAILED + 1)); echo "FAIL lane ${l% *} ended without its counts"
        fi
    done
}

ops() { # NAME LEVEL SEED CHECK
    counted "operations $1, seed $3$([ "$4" = 0 ] || echo ", checked")" \
        seeded "$3" "$4" timeout -k 10 "$LIMIT" "$BUILD/tests/cuda/gpu_ops" "$2" "$3" 1
}
# short MODEL SEED [options]: the whole short prompt of a real model.
short() {
    local g=$GOLDEN/$1
    t "$1 short, seed $2${3:+ ${*:3}}" seeded "$2" 0 \
        digest_is "$1" "$g/short.ids" "$g/short.expect" all --device metal "${@:3}"
}
# mini MODEL N SEED CHECK [options]: the first positions of a mini model.
mini() {
    t "mini $1, $2 positions, seed $3$([ "$4" = 0 ] || echo ", checked")${5:+ ${*:5}}" seeded "$3" "$4" digest_is \
        "mini-$1" $GOLDEN/smollm2-135m/long.ids "$GOLDEN/mini/$1.expect" "$2" --device metal "${@:5}"
}

# Pages of a producer on the CPU are received where the GPU reads them; the last position is computed there.
handoff() {
    local model rc=0; model=$(model_file smollm2-135m)
    make_nodes "$TMP" && start_producer "$TMP" "$model" || return 1
    iso digest "$model" $GOLDEN/smollm2-135m/long.ids -n 66 --producer 127.0.0.1:"$PORT" --dir "$TMP/consumer" \
        --device metal >"$TMP/there" || rc=1
    stop_producer || rc=1
    cat "$TMP/producer.log" "$TMP/there"
    [ $rc -eq 0 ] && cmp <(sed -n 66p $GOLDEN/smollm2-135m/long.expect) <(head -n 1 "$TMP/there")
}

operations() {
    local a f
    for f in tests/metal_host/test_*.c tests/metal/test_*.c; do
        f=${f%.c}; counted "$f" timeout -k 10 "$LIMIT" "$BUILD/$f"
    done
    ops concurrent metal 1 1
    ops serial metal:serial 2 1
    ops concurrent metal 3 0
    short gemma3-270m 1
    short gemma3-270m 2 --chunk 1
    short gemma3-270m 3 --isa serial --chunk 3
    for a in llama qwen2 qwen3 muse-glimmer; do mini $a 200 2 0; done
}
digests() {
    local a f g=$GOLDEN/smollm2-135m
    for f in tests/metal_kernels/test_*.c; do
        f=${f%.c}; counted "$f, checked" seeded 1 1 timeout -k 10 "$LIMIT" "$BUILD/$f"
    done
    short smollm2-135m 1
    short smollm2-135m 2 --chunk 7
    short smollm2-135m 3 --isa serial --chunk 1
    t "smollm2-135m boundaries, seed 2 --isa serial" seeded 2 0 boundaries_are smollm2-135m $g/short.ids \
        $g/short.expect all $g/short.boundaries --device metal --isa serial
    for a in llama qwen2 qwen3 muse-glimmer; do
        mini $a 2 1 1 --chunk 1
    done
    mini qwen3 2 2 1 --chunk 1 --isa serial
    t "hand-off from the CPU" handoff
    t "mini muse-glimmer boundaries, 100 positions, seed 1" seeded 1 0 boundaries_are mini-muse-glimmer \
        $g/long.ids $GOLDEN/mini/muse-glimmer.expect 100 $GOLDEN/mini/muse-glimmer.100.boundaries --device metal
}

t "models: tools/fetch_models.sh all" bash tools/fetch_models.sh all
t "flattened kernels" flat
t "flatten refuses what it cannot decide" flat_refuses
t "flatten decides what it can" flat_decides
for sdk in 140000 150000; do
    t "metal_gpu_darwin.m against the declarations of SDK $sdk" objc $sdk src/device/metal_gpu_darwin.m
done
t "a wrong method name is seen" objc_fails 's/endEncoding\]/endEncodings]/'
t "a wrong argument is seen" objc_fails 's/MTLDataTypeBool atIndex:constants\[i\].index/MTLDataTypeBool atIndex:values/'
goals="$BUILD/isobit $BUILD/tests/cuda/gpu_ops"
goals+=" $(ls tests/metal{,_host,_kernels}/test_*.c | sed "s|^|$BUILD/|; s|[.]c\$||")"
t "build METAL=emulated" make -j"$(nproc)" METAL=emulated BUILD="$BUILD" $goals || finish
# The kernels are compiled at the first run: here, so that not both lanes do it.
for check in 0 1; do mini llama 1 1 $check; done
lane operations operations
lane digests digests
join_lanes
echo "took $((($(now_ms) - started) / 1000)) s"
finish
