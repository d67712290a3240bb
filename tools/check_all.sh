#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_all.sh - `make check-all`: long prompts at each ISA level, then a pairwise cover of the settings.
#
# Every pair of values of ISA, threads, chunk and batch occurs in at least one run, never the full product.
# Each run must print the golden digests; all copies of a batch must agree with the first, bit for bit.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh

fetch() { bash tools/fetch_models.sh all || { echo "models are missing: run tools/fetch_models.sh all"; return 1; }; }
t "models: tools/fetch_models.sh all" fetch
t "build" make -j"$(nproc)" all
find_levels
t "instruction sets: ${LEVELS[*]}" test "${#LEVELS[@]}" -ge 1

for level in "${LEVELS[@]}"; do
    for m in smollm2-135m gemma3-270m; do
        # Chunks of 512: the logits of 961 rows of 262,144 would take a gigabyte.
        t "$m long $level" digest_is $m $GOLDEN/$m/long.ids $GOLDEN/$m/long.expect all --isa "$level" --chunk 512
    done
done

if why=$(bash tests/handoff/link_down.sh may); then
    counted tests/handoff/link_down.sh bash tests/handoff/link_down.sh
else
    echo "skip          tests/handoff/link_down.sh: $why"
fi

# cover: lines "isa threads chunk batch", greedy: the setting with the most new pairs for its cost.
cover() {
    python3 - "$(sed -n 's/^#define ISO_MAX_BATCH \([0-9]*\).*/\1/p' src/engine/engine.h)" "${LEVELS[@]}" <<'PY'
import itertools, sys
limit, levels = int(sys.argv[1]), sys.argv[2:]
factors = [levels, [1, 2, 3, 7], ["1", "63", "64", "512", "all"], list(range(1, 10))]
positions = {"1": 40, "63": 130, "64": 130, "512": 520, "all": 200}
def fits(c): return c[2] != "512" or 512 * c[3] <= limit
def pairs(c): return {(i, c[i], j, c[j]) for i, j in itertools.combinations(range(4), 2)}
def cost(c):  # seconds, roughly: a start, then rows; the reference level is some fifty times slower
    slow = {"ref": 50, "avx2": 3}.get(c[0], 1) if len(levels) > 1 else 1
    return 1.0 + positions[c[2]] * c[3] * slow / 1000.0
cases = [c for c in itertools.product(*factors) if fits(c)]
missing = set().union(*map(pairs, cases))
while missing:
    best = max(cases, key=lambda c: len(pairs(c) & missing) / cost(c) ** 0.5)
    missing -= pairs(best)
    print(*best)
PY
}

# Which model a case runs: chunks of 512 need a long golden prompt, the others take turns.
n=0
turn=(mini-llama smollm2-135m mini-qwen2 gemma3-270m mini-qwen3 mini-muse-glimmer)
one_case() {
    local isa=$1 threads=$2 chunk=$3 batch=$4 model ids want count
    model=${turn[n++ % 6]}
    case $chunk in
    512) model=smollm2-135m count=520 ;;
    1) count=70; if [ "$isa" = ref ]; then count=17; fi ;;
    *) count=130 ;;
    esac
    local prompt=smollm2-135m
    case $model in
    mini-*) want=$GOLDEN/mini/${model#mini-}.expect; if [ "$chunk" = all ] && [ "$isa" != ref ]; then count=200; fi ;;
    *) want=$GOLDEN/$model/long.expect prompt=$model ;;
    esac
    # 262,144 logits a row: fewer rows keep memory and time small, 66 still cross a page.
    if [ $model = gemma3-270m ] && [ "$count" -gt 66 ]; then count=66; fi
    ids=$GOLDEN/$prompt/long.ids
    set -- --isa "$isa" --threads "$threads" --batch "$batch"
    if [ "$chunk" != all ]; then set -- "$@" --chunk "$chunk"; fi
    t "cover $isa, $threads threads, chunk $chunk, batch $batch: $model, $count positions" \
        digest_is $model "$ids" "$want" $count "$@"
}
if t "cover: list of settings" eval 'cover >"$TMP/cover" && [ "$(wc -l <"$TMP/cover")" -ge 44 ]'; then
    while read -r isa threads chunk batch; do one_case "$isa" "$threads" "$chunk" "$batch"; done <"$TMP/cover"
fi
finish
