#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench_cuda.sh - isobit and llama.cpp side by side on this machine's GPU: the same files, in turn, against the bars.
#
# usage: bench_cuda.sh LLAMA_BENCH [ROUNDS (3)] [MODEL.gguf BAR_PREFILL BAR_DECODE]...
#   LLAMA_BENCH: llama.cpp's llama-bench built with CUDA (tools/build_llama_cpp.sh DIR -DGGML_CUDA=ON), or "none"
# Without models: the synthetic shapes that the bars are for, made in SYNTH (a folder with 28 GB of room):
#   Muse 30B Q4_K (prefill 1.5, decode 1.6), Llama 8B Q4_K (1.3, 1.6), Llama 8B Q8_0 (1.0, 1.3).
# A round is one run of each program on one file, prefill of 8,192 tokens and decode of 128: a machine that slows
# down hurts both. A ratio is the median over rounds of the ratio within a round. Environment: ISO (./isobit, built
# with CUDA=1), PROMPT, GEN, BATCH (2048, both programs), DEPTH (0), RESULTS (bench/results).
# Writes RESULTS/DATE-CHIP-bench.{md,json}. Exit status 1 when a bar is missed, 2 when something could not run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
peer=${1:?usage: bench_cuda.sh LLAMA_BENCH|none [ROUNDS] [MODEL.gguf BAR_PREFILL BAR_DECODE]...}
rounds=${2:-3}
shift $(($# < 2 ? $# : 2))
ISO=${ISO:-./isobit} PROMPT=${PROMPT:-8192} GEN=${GEN:-128} BATCH=${BATCH:-2048} DEPTH=${DEPTH:-0}
RESULTS=${RESULTS:-bench/results} SYNTH=${SYNTH:-${TMPDIR:-/tmp}/isobit-synth}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
die() { echo "bench_cuda: $*" >&2; exit 2; }
[ "$peer" = none ] || [ -x "$peer" ] || die "$peer: not a program; build llama.cpp with tools/build_llama_cpp.sh or say none"
"$ISO" identity --json >"$work/identity.json" || die "$ISO does not run"
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0) || die "no GPU: nvidia-smi failed"

models=("$@")
if [ ${#models[@]} -eq 0 ]; then
    mkdir -p "$SYNTH" && cc -std=c11 -D_GNU_SOURCE -O2 -pthread -o "$work/synth" tools/synth_gguf.c -lm || die "tools/synth_gguf.c"
    for shape in "muse30b q4_k 1.5 1.6" "llama8b q4_k 1.3 1.6" "llama8b q8_0 1.0 1.3"; do
        read -r name type prefill decode <<<"$shape"
        file=$SYNTH/$name-$type.gguf
        [ -f "$file" ] || { "$work/synth" "$name" "$type" "$file.part" && mv "$file.part" "$file"; } || die "no room for $file"
        models+=("$file" "$prefill" "$decode")
    done
fi
[ $((${#models[@]} % 3)) -eq 0 ] || die "each model needs a file and two bars"

# one PROGRAM ROUND MODEL COMMAND...: one run; its JSON becomes a file of its own.
one() {
    local out=$work/run.$2.$1.$(basename "$3").json program=$1 round=$2 name; name=$(basename "$3"); shift 3
    echo "round $round, $program, $name" >&2
    timeout -k 10 "${LIMIT:-600}" "$@" >"$out" 2>"$work/err" || { tail -n 5 "$work/err" >&2; die "failed: $*"; }
}
for ((m = 0; m < ${#models[@]}; m += 3)); do
    model=${models[m]}
    for round in $(seq "$rounds"); do
        one isobit "$round" "$model" "$ISO" bench "$model" --device cuda -r 3 -b "$BATCH" -p "$PROMPT" -n "$GEN" -d "$DEPTH" --json
        [ "$peer" = none ] || one llama.cpp "$round" "$model" "$peer" -m "$model" -ngl 99 -fa 1 -r 3 -b "$BATCH" -ub "$BATCH" \
            -p "$PROMPT" -n "$GEN" -d "$DEPTH" -o json
    done
done

chip=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | sed 's/^nvidia-//')
mkdir -p "$RESULTS"
python3 tools/bench_ratio.py "$work" "$RESULTS/$(date +%F)-$chip-bench" "$gpu, driver $(nvidia-smi \
    --query-gpu=driver_version --format=csv,noheader -i 0)" "PROMPT=$PROMPT GEN=$GEN BATCH=$BATCH DEPTH=$DEPTH tools/bench_cuda.sh" \
    "${models[@]}"
