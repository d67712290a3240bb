#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_cuda.sh - `make check-cuda`: builds for this machine's GPU, then every test that needs one.
#
# usage: check_cuda.sh [PART...]     all parts without arguments:
#   ops        each operation against the CPU's on generated data and the golden vectors (tests/cuda/gpu_ops.c)
#   golden     .expect and boundaries of the mini models, SmolLM2 and Gemma
#   steps      chunks of 1, 64, 512 and all, batches of 1 to 16, decode at every position (tests/cuda/gpu_steps.c)
#   shapes     Llama 8B and Muse 30B at full width, LAYERS (4) layers of synthetic weights: 64 positions behind
#              contexts of 0, 511, 512, 4096 and 33000 equal to the CPU's (tests/cuda/gpu_context.c)
#   handoff    to and from the GPU, and that receipts and manifests name its kernels
#   loud       what is missing, wrong, full or lost is an error with a name (tests/cuda/loud.sh)
#   sanitizer  compute-sanitizer, memcheck and racecheck, on the mini models
# Environment: MODELS, those to run ("smollm2-135m gemma3-270m mini-llama mini-qwen2 mini-qwen3 mini-muse-glimmer");
# BUILT=1, the programs of BUILD (build/check-cuda) are there already: a machine without the libraries' headers.
# What is left out so is in the record as not run. Everything at each level of the chip (sm90 and generic). The outcome with commit, machine and every line is written
# to RESULTS (bench/results) as DATE-CHIP-check.md. On a machine without a GPU the first test fails.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
BUILD=${BUILD:-build/check-cuda} ISO=$BUILD/isobit RESULTS=${RESULTS:-bench/results}
SYNTH=${SYNTH:-${TMPDIR:-/tmp}/isobit-synth} LAYERS=${LAYERS:-4}
NVCC=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
PARTS=(ops golden steps shapes handoff loud sanitizer)
SELECTED=("${@:-${PARTS[@]}}")
MINIS=(llama qwen2 qwen3 muse-glimmer) REALS=(smollm2-135m gemma3-270m)
MODELS=${MODELS:-${REALS[*]} ${MINIS[*]/#/mini-}} BUILT=${BUILT:-}
long_ids=$GOLDEN/smollm2-135m/long.ids

gpu_says() { nvidia-smi --query-gpu="$1" --format=csv,noheader -i 0 2>&1 | head -n 1; }
program() { counted "$1" timeout -k 10 "$LIMIT" "$BUILD/tests/cuda/$2" "${@:3}"; }
# not_run NAME REASON: neither passed nor failed, but in the record.
not_run() { printf '%-4s %6s  %s: %s\n' "not" run "$1" "$2"; }

# wanted NAME PART: is the model among MODELS? Else the record says so.
among_models() { [[ " $MODELS " == *" $1 "* ]]; }
wanted() { among_models "$1" || { not_run "$2 of $1" "not among MODELS"; return 1; }; }

have_models() {
    local m missing=
    for m in $MODELS; do
        [ -f "$(model_file $m)" ] || missing+=" $(model_file $m)"
    done
    [ -z "$missing" ] || bash tools/fetch_models.sh all || { echo "missing:$missing; run tools/fetch_models.sh all"; return 1; }
}

# built FOLDER GOAL GENCODE: makes a program ("gpu": all that need one), or sees that it is there.
built() {
    local goal=$1/$2 f
    if [ "$2" = gpu ]; then goal=gpu; fi
    if [ -z "$BUILT" ]; then make -j"$(nproc)" BUILD="$1" CUDA=1 NVCC="$NVCC" GENCODE="$3" "$goal"; return; fi
    if [ "$2" != gpu ]; then set -- "$1" "$2"; else set -- "$1" isobit tests/cuda/gpu_{ops,steps,context}; fi
    for f in "${@:2}"; do [ -x "$1/$f" ] || { echo "BUILT is set, but $1/$f is missing"; return 1; }; done
}

part_ops() {
    local seed
    for seed in 1 2 3; do program "operations $1, seed $seed" gpu_ops "$1" $seed 2; done
}

part_golden() {
    local m a g gpu=(--device cuda --isa "$1")
    for m in "${REALS[@]}"; do
        wanted "$m" "golden $1" || continue
        g=$GOLDEN/$m
        t "$m short $1" digest_is $m $g/short.ids $g/short.expect all "${gpu[@]}"
        t "$m boundaries $1" boundaries_are $m $g/short.ids $g/short.expect all $g/short.boundaries "${gpu[@]}"
        t "$m boundaries, chunk 7 $1" boundaries_are $m $g/short.ids $g/short.expect all $g/short.boundaries "${gpu[@]}" --chunk 7
        t "$m long $1" digest_is $m $g/long.ids $g/long.expect all "${gpu[@]}" --chunk 512
    done
    for a in "${MINIS[@]}"; do
        wanted "mini-$a" "golden $1" || continue
        t "mini $a $1" digest_is mini-$a $long_ids $GOLDEN/mini/$a.expect 200 "${gpu[@]}"
        t "mini $a, batch 9, chunk 63 $1" digest_is mini-$a $long_ids $GOLDEN/mini/$a.expect 200 "${gpu[@]}" --batch 9 --chunk 63
    done
    wanted mini-muse-glimmer "boundaries $1" || return 0
    t "mini muse-glimmer boundaries $1" boundaries_are mini-muse-glimmer $long_ids $GOLDEN/mini/muse-glimmer.expect 100 \
        $GOLDEN/mini/muse-glimmer.100.boundaries "${gpu[@]}"
}

part_steps() {
    local m a
    for a in "${MINIS[@]}"; do
        wanted "mini-$a" "steps $1" || continue
        program "mini $a: chunks, batches, decode everywhere $1" gpu_steps cuda "$1" "$(model_file mini-$a)" $long_ids \
            $GOLDEN/mini/$a.expect 0 chunks batches rewind fresh
    done
    for m in "${REALS[@]}"; do
        wanted "$m" "steps $1" || continue
        program "$m long: chunks, decode everywhere $1" gpu_steps cuda "$1" "$(model_file $m)" $GOLDEN/$m/long.ids \
            $GOLDEN/$m/long.expect 0 chunks rewind fresh
        program "$m: batches $1" gpu_steps cuda "$1" "$(model_file $m)" $GOLDEN/$m/long.ids $GOLDEN/$m/long.expect 150 batches
    done
}

# synthetic SHAPE TYPE: the file's path; made once, as long as there is room.
synthetic() {
    local f=$SYNTH/$1-$2-$LAYERS.gguf
    mkdir -p "$SYNTH" && if [ ! -f "$f" ]; then
        "$BUILD/synth_gguf" "$1" "$2" "$f.part" seed 7 layers "$LAYERS" && mv "$f.part" "$f" || return 1
    fi
    echo "$f"
}
part_shapes() {
    local shape type file
    [ -n "$BUILT" ] && [ -x "$BUILD/synth_gguf" ] || t "tools/synth_gguf.c" cc -std=c11 -D_GNU_SOURCE -O2 -pthread -o "$BUILD/synth_gguf" tools/synth_gguf.c -lm || return
    for shape in "llama8b q4_k" "llama8b q8_0" "llama8b mix" "muse30b q4_k"; do
        type=${shape#* } shape=${shape% *}
        file=$(synthetic $shape $type) || { t "weights of $shape $type" false; continue; }
        program "$shape $type, $LAYERS layers, contexts $1" gpu_context cuda "$1" "$file" 7 0 511 512 4096 33000
    done
}

# Hand-offs: the first logits and the text must be those of a run on the CPU alone.
model=$(model_file smollm2-135m)
answer() { # NAME [options]
    local name=$1; shift
    iso run "$model" -f "$TMP/prompt" -n 24 --temp 0 -q --report "$TMP/$name.json" "$@" >"$TMP/$name.txt"
}
first_logits() {
    sed -n 's/.*"first_logits": *"\([0-9a-f]*\)".*/\1/p' "$TMP/$1.json" | grep -Ex '[0-9a-f]{64}' || echo "none in $1"
}
like_cpu() { [ "$(first_logits "$1")" = "$(first_logits cpu)" ] && cmp "$TMP/$1.txt" "$TMP/cpu.txt"; }
alone() { answer cuda --device cuda --isa "$1" && like_cpu cuda; }
handoff() { # PRODUCER CONSUMER LEVEL: each cpu or cuda, the level of those that are cuda
    local name=$1-$2 rc=0 isa=() from=()
    [ "$1" = cpu ] || from=(--isa "$3")
    [ "$2" = cpu ] || isa=(--isa "$3")
    start_producer "$TMP" "$model" --device "$1" "${from[@]}" || return 1
    answer "$name" --device "$2" "${isa[@]}" --producer 127.0.0.1:"$PORT" --dir "$TMP/consumer" --peer producer \
        --prefill remote --audit 4 || rc=1
    stop_producer || rc=1
    cat "$TMP/producer.log"
    [ $rc -eq 0 ] && grep -q '"committed": *true' "$TMP/$name.json" && like_cpu "$name"
}
part_handoff() {
    local pair
    wanted smollm2-135m "handoff $1" || return 0
    if [ ! -d "$TMP/producer" ]; then
        yes "The lamp was lit at dusk. Towards midnight the wind turned and the sea came over the gallery." |
            head -n 12 >"$TMP/prompt"
        t "keys of two nodes" make_nodes "$TMP"
        t "answer of the CPU" answer cpu
        counted "fingerprints in receipts, manifests and benches" env ISO="$ISO" bash tests/cli/identity.sh cuda "${levels[@]}"
    fi
    t "answer of the GPU $1" alone "$1"
    for pair in "cuda cpu" "cpu cuda" "cuda cuda"; do t "hand-off ${pair/ / to } $1" handoff $pair "$1"; done
}

# No silent fallback: what is not there is an error with its name. Once, not at each level.
part_loud() {
    [ "$1" = generic ] || return 0
    wanted smollm2-135m "loud" || return 0
    local other=80 ids=$GOLDEN/smollm2-135m/short.ids
    if [ "$cap" = 80 ]; then other=90a; fi
    t "the program with a runtime of faults" built "$BUILD" isobit-fake "$gencode"
    counted "tests/cuda/loud.sh" env ISO="$ISO" bash tests/cuda/loud.sh "$BUILD"
    t "a CPU's level is an error" exits 2 'of cuda: auto, sm90, generic' iso digest "$model" $ids --device cuda --isa avx2
    t "an unknown device is an error" exits 2 "rocm" iso digest "$model" $ids --device rocm
    t "build for sm_$other only" built "$BUILD-other" isobit "-gencode arch=compute_$other,code=sm_$other" || return
    wrong_chip() { local ISO=$BUILD-other/isobit; exits 1 'this build has no kernels for' iso digest "$model" $ids --device cuda; }
    t "a program without this chip's code is an error" wrong_chip
}

# sanitized MODEL POSITIONS CHUNK LEVEL TOOL: one run; clean says whether it was, and its bits right.
sanitized() {
    local RUN="$san --tool $5 --error-exitcode 9 --print-limit 5" log=$TMP/sane.$1.$2.$4.$5
    iso digest "$(model_file mini-$1)" $long_ids -n "$2" --chunk "$3" --device cuda --isa "$4" >"$log" 2>&1 || echo "status $?" >>"$log"
}
clean() {
    local log=$TMP/sane.$1.$2.$3.$4
    cat "$log"
    ! grep -q '^status' "$log" && grep -q 'ERROR SUMMARY: 0 errors\|RACECHECK SUMMARY: 0 hazards' "$log" &&
        cmp <(grep '^[0-9]* [0-9]' "$log") <(head -n "$2" $GOLDEN/mini/$1.expect)
}
part_sanitizer() {
    local tool a san; san=$(command -v compute-sanitizer || ls "$(dirname "$NVCC")"/compute-sanitizer 2>/dev/null)
    if [ -z "$san" ]; then not_run "compute-sanitizer $1" "the tool is not installed"; return; fi
    for tool in memcheck racecheck; do
        if ! timeout 120 "$san" --tool $tool --error-exitcode 9 "$ISO" identity >"$TMP/log" 2>&1 || grep -q 'Error: ' "$TMP/log"; then
            not_run "compute-sanitizer $tool $1" "it cannot start here: $(grep -m 1 -E 'rror' "$TMP/log" | cut -c 1-160)"
            continue
        fi
        for a in "${MINIS[@]}"; do # all at once: racecheck takes half a minute each
            wanted "mini-$a" "$tool $1" || continue
            (sanitized $a 40 24 "$1" $tool) &
            (sanitized $a 4 1 "$1" $tool) &
        done
        wait
        for a in "${MINIS[@]}"; do
            among_models mini-$a || continue
            t "compute-sanitizer $tool, mini $a, 40 positions $1" clean $a 40 "$1" $tool
            t "compute-sanitizer $tool, mini $a, decode $1" clean $a 4 "$1" $tool
        done
    done
}

main() {
    local part level since
    t "a GPU: $(gpu_says name), driver $(gpu_says driver_version)" nvidia-smi -L || finish
    for part in "${SELECTED[@]}"; do
        [[ " ${PARTS[*]} " == *" $part "* ]] || { t "a part named $part (${PARTS[*]})" false; finish; }
    done
    cap=$(gpu_says compute_cap | tr -d .)
    if [ "$cap" = 90 ]; then cap=90a; fi # wgmma
    gencode="-gencode arch=compute_$cap,code=sm_$cap"
    levels=(generic)
    if [ "$cap" = 90a ]; then levels=(sm90 generic); fi
    t "models" have_models
    t "build for sm_$cap" built "$BUILD" gpu "$gencode" || finish
    iso identity | grep -E "^(isobit|cuda|      )"
    for part in "${SELECTED[@]}"; do
        since=$(now_ms)
        for level in "${levels[@]}"; do "part_$part" "$level"; done
        echo "---- $(((($(now_ms) - since)) / 1000)) s  part $part"
    done
    finish
}

# The record: what ran, where, and every line of it.
record() {
    local chip name
    chip=$(gpu_says name | tr 'A-Z ' 'a-z-' | sed 's/^nvidia-//')
    name=$RESULTS/$(date +%F)-$chip-check
    if [ ${#SELECTED[@]} -lt ${#PARTS[@]} ]; then name+=-$(IFS=-; echo "${SELECTED[*]}"); fi
    mkdir -p "$RESULTS"
    {
        echo "# GPU checks, $(gpu_says name), $(date +%F)"
        echo
        echo "Commit $("$ISO" --version 2>/dev/null || git rev-parse --short=12 HEAD), \`tools/check_cuda.sh $*\`, $SECONDS s."
        echo "GPU: $(gpu_says name,driver_version,memory.total,compute_cap); nvcc $("$NVCC" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')."
        echo "CPU: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors."
        echo
        echo '```'
        cat "$TMP/lines"
        echo '```'
    } >"$name.md"
    echo "written: $name.md"
}
SECONDS=0
main 2>&1 | tee "$TMP/lines"
status=${PIPESTATUS[0]}
if nvidia-smi -L >/dev/null 2>&1; then record "$@"; fi
exit "$status"
