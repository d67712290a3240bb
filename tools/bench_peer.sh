#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# bench_peer.sh - isobit and llama.cpp side by side in one run: the same file, threads and sizes, in turn, so that a noisy machine hurts both.
# usage: bench_peer.sh MODEL.gguf [threads (default: all)] [rounds (default 3)] [prompt (512)] [gen (64)]
# Builds llama.cpp once into $PEER_DIR (default ~/.cache/isobit/peer-build). Prints CSV: round, program, test, tokens/s; then medians and ratios.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
model=${1:?usage: bench_peer.sh MODEL.gguf [threads] [rounds] [prompt] [gen]}
threads=${2:-$(nproc)} rounds=${3:-3} pp=${4:-512} tg=${5:-64}
peer=${PEER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/isobit/peer-build}
[ -x "$peer/build/bin/llama-bench" ] || TARGETS=llama-bench sh "$here/tools/build_llama_cpp.sh" "$peer" >&2
[ -x "$here/isobit" ] || make -C "$here" all >&2
out=$(mktemp); trap 'rm -f "$out"' EXIT
for r in $(seq "$rounds"); do
    "$here/isobit" bench "$model" -t "$threads" -p "$pp" -n "$tg" -r 3 --json |
        python3 -c "import json,sys
for x in json.load(sys.stdin): print('$r,isobit,' + x['test'] + ',%.2f' % x['tokens_per_s_median'])" | tee -a "$out"
    "$peer/build/bin/llama-bench" -m "$model" -t "$threads" -fa 1 -p "$pp" -n "$tg" -r 3 -o json 2>/dev/null |
        python3 -c "import json,sys,statistics as s
for x in json.load(sys.stdin):
    n = x['n_prompt'] or x['n_gen']
    print('$r,llama.cpp,' + ('pp' if x['n_prompt'] else 'tg') + str(n) + ',%.2f' % s.median(x['samples_ts']))" | tee -a "$out"
done
python3 - "$out" <<'P'
import statistics as s, sys
v = {}
for line in open(sys.argv[1]):
    _, program, test, rate = line.strip().split(',')
    v.setdefault(test, {}).setdefault(program, []).append(float(rate))
for test, p in v.items():
    a, b = s.median(p['isobit']), s.median(p['llama.cpp'])
    pairs = [x / y for x, y in zip(p['isobit'], p['llama.cpp'])]
    print(f"{test}: isobit {a:.1f}, llama.cpp {b:.1f} tok/s, ratio {s.median(pairs):.2f} (rounds {min(pairs):.2f} to {max(pairs):.2f})")
P
