#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# golden.sh - what the test scripts share: counting tests, comparing digests with tests/golden.
#
# To be sourced from the project's root. Uses: ISO (the program, default ./isobit), RUN (an emulator
# in front of it, may be empty), LIMIT (seconds that one command may take).
set -uo pipefail
export LC_ALL=C
unset MAKEFLAGS MFLAGS MAKELEVEL ISO_LOG ISO_CPU_MASK  # an outer make must not steer these runs
exec </dev/null
ISO=${ISO:-./isobit} RUN=${RUN:-} LIMIT=${LIMIT:-900}
GOLDEN=tests/golden
N_PASSED=0 N_FAILED=0
TMP=$(mktemp -d "${TMPDIR:-/tmp}/isobit.XXXXXX")
PRODUCER=
trap 'stop_producer; rm -rf "$TMP"' EXIT
trap 'exit 130' INT TERM

now_ms() { local t=$EPOCHREALTIME; echo $((${t%.*} * 1000 + 10#${t#*.} / 1000)); }

# report STATUS SINCE_MS NAME: one line per test.
report() {
    local ms=$(($(now_ms) - $2))
    printf '%-4s %4d.%d s  %s\n' "$1" $((ms / 1000)) $((ms % 1000 / 100)) "$3"
}

# t NAME COMMAND...: one test; it passes when the command (or function) returns 0.
t() {
    local name=$1 since; since=$(now_ms); shift
    if ("$@") >"$TMP/log" 2>&1; then
        N_PASSED=$((N_PASSED + 1)); report ok "$since" "$name"; return 0
    fi
    N_FAILED=$((N_FAILED + 1)); report FAIL "$since" "$name"
    grep -v "not remade because of errors" "$TMP/log" | tail -n "${TAIL:-25}" | sed 's/^/     | /'
    return 1
}

# counted NAME COMMAND...: a program with many tests inside: cmocka's lines or a script that ends with
# "N passed, N failed". A program that fails without naming a test, or runs none, is one failure.
counted() {
    local name=$1 since good bad skipped rc=0; since=$(now_ms); shift
    "$@" >"$TMP/log" 2>&1 || rc=$?
    good=$(grep -c '^\[       OK \]' "$TMP/log")
    bad=$(awk '/^\[  FAILED  \] [0-9]+ test/ {n += $4} END {print n + 0}' "$TMP/log")
    skipped=$(awk '/^\[  SKIPPED \] [0-9]+ test/ {n += $4} END {print n + 0}' "$TMP/log")
    if [[ $(tail -n 1 "$TMP/log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        good=${BASH_REMATCH[1]} bad=${BASH_REMATCH[2]}
    fi
    if [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ "$rc" -eq 0 ] && [ "$good" -eq 0 ]; then bad=1; echo "no test ran" >>"$TMP/log"; fi
    N_PASSED=$((N_PASSED + good)) N_FAILED=$((N_FAILED + bad))
    name="$name ($good passed"
    if [ "$skipped" -gt 0 ]; then name+=", $skipped skipped"; fi
    if [ "$bad" -eq 0 ]; then report ok "$since" "$name)"; return 0; fi
    report FAIL "$since" "$name, $bad failed, status $rc)"
    { grep -E -A8 '^(FAIL|\[  FAILED  \])|ERROR|runtime error|error: ' "$TMP/log" || tail -n 25 "$TMP/log"; } |
        head -n 60 | sed 's/^/     | /'
    return 1
}

# finish: the last line of a script; the status says whether all passed.
finish() {
    echo "$N_PASSED passed, $N_FAILED failed"
    [ "$N_FAILED" -eq 0 ]; exit
}

iso() { timeout -k 10 "$LIMIT" $RUN "$ISO" "$@"; }

# exits STATUS PATTERN COMMAND...: the command's status, and a line of its output (both streams) that
# matches the extended pattern. Never a crash: those are statuses above 128.
exits() {
    local want=$1 pattern=$2 rc=0 out; shift 2
    out=$(mktemp "$TMP/out.XXXXXX")
    "$@" >"$out" 2>&1 || rc=$?
    cat "$out"
    if [ $rc -ne "$want" ]; then echo "status $rc, expected $want: $*"; return 1; fi
    grep -Eq -- "$pattern" "$out" || { echo "no line matches: $pattern"; return 1; }
}

# make_nodes DIR: keys of two machines that know each other: DIR/producer (with the CA), DIR/consumer.
make_nodes() {
    iso keys init producer --ca --dir "$1/producer" &&
        iso keys init consumer --dir "$1/consumer" &&
        iso keys request --dir "$1/consumer" -o "$1/consumer.request" &&
        iso keys issue "$1/consumer.request" --dir "$1/producer" -o "$1/consumer.grant" &&
        iso keys enroll "$1/consumer.grant" --dir "$1/consumer"
}

# start_producer DIR MODEL [options]: starts `isobit produce` in the background; PRODUCER is its process
# id, PORT where it listens, DIR/producer.log what it says. stop_producer ends it and waits.
start_producer() {
    local dir=$1 model=$2 i; shift 2
    : >"$dir/producer.ready"
    $RUN "$ISO" produce "$model" --listen 127.0.0.1:0 --dir "$dir/producer" --json "$@" \
        >"$dir/producer.ready" 2>"$dir/producer.log" &
    PRODUCER=$! PORT=
    for ((i = 0; i < ${START_TENTHS:-300}; i++)); do
        PORT=$(sed -n 's/.*"port": *\([0-9]*\).*/\1/p' "$dir/producer.ready")
        [ -z "$PORT" ] || return 0
        kill -0 "$PRODUCER" 2>/dev/null || break
        sleep 0.1
    done
    echo "the producer did not start:"; cat "$dir/producer.log"
    return 1
}
# await TIMES SECONDS COMMAND...: tries it so often, so far apart; the status of the last try.
await() {
    local i times=$1 pause=$2; shift 2
    for ((i = 1; i < times; i++)); do
        if "$@"; then return 0; fi
        sleep "$pause"
    done
    "$@"
}
stop_producer() {
    [ -n "${PRODUCER:-}" ] || return 0
    kill "$PRODUCER" 2>/dev/null
    wait "$PRODUCER"; local rc=$?
    PRODUCER=
    return $rc
}

models() { echo "${ISOBIT_MODELS:-$HOME/.cache/isobit/models}"; }

# model_file NAME: path of a model by its folder's name in tests/golden, or of a mini model.
model_file() {
    case $1 in
    smollm2-135m) echo "$(models)/SmolLM2-135M-Instruct.Q4_1.gguf" ;;
    gemma3-270m) echo "$(models)/gemma-3-270m-q4_k_m.gguf" ;;
    mini-*) echo "$(models)/$1.gguf" ;;
    esac
}

# Levels of this machine, lowest first, into LEVELS. What the program refuses for another reason than
# the machine's or the build's lack of the level stays in the list, so that its tests fail.
find_levels() {
    local l
    LEVELS=()
    for l in ref avx2 avx512 vnni neon; do
        if iso digest "$(model_file smollm2-135m)" $GOLDEN/smollm2-135m/short.ids -n 1 --isa $l \
            >/dev/null 2>"$TMP/level" || ! grep -Eq "this machine has no|instruction set '$l'" "$TMP/level"
        then LEVELS+=("$l"); fi
    done
}

# same_lines WANT GOT N: the first N lines of two outputs of `isobit digest` (N = all: every line, and the
# perplexity to within its last digit, as tests/golden/README.md says).
same_lines() {
    local want=$1 got=$2 n=$3
    if [ "$n" != all ]; then
        [ "$(grep -c '^[0-9]' "$got")" -eq "$n" ] || { echo "$got: not $n positions"; return 1; }
        diff <(head -n "$n" "$want") <(head -n "$n" "$got") | head -n 6
        return "${PIPESTATUS[0]}"
    fi
    diff <(grep -v '^ppl' "$want") <(grep -v '^ppl' "$got") | head -n 6
    [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
    awk '$1 == "ppl" {v[++n] = $2} END {d = v[1] - v[2]; if (d < 0) d = -d
         if (n != 2 || d > 2e-6) {print "ppl", v[1], v[2]; exit 1}}' "$want" "$got"
}

# digest_is MODEL IDS EXPECT N [options]: the run's lines equal the golden ones. N: positions, or "all".
digest_is() {
    local model=$1 ids=$2 want=$3 n=$4; shift 4
    local out; out=$(mktemp "$TMP/digest.XXXXXX")
    if [ "$n" != all ]; then set -- "$@" -n "$n"; fi
    iso digest "$(model_file "$model")" "$ids" "$@" >"$out" || { rm -f "$out"; return 1; }
    if [ "$n" != all ] && [ "$(grep -c '^[0-9]' "$want")" -eq "$n" ]; then n=all; fi  # so compare the chains too
    same_lines "$want" "$out" "$n"
    local rc=$?; rm -f "$out"; return $rc
}

# boundaries_are MODEL IDS EXPECT N LIST [options]: the same with every boundary tensor written and hashed.
boundaries_are() {
    local list=$5 dir rc
    dir=$(mktemp -d "$TMP/boundaries.XXXXXX")
    digest_is "$1" "$2" "$3" "$4" "${@:6}" --boundaries "$dir" &&
        (cd "$dir" && sha256sum --quiet --strict -c -) <"$list"
    rc=$?; rm -rf "$dir"; return $rc
}

# golden_short LEVEL [options]: the short prompts of the real models, with and without boundaries.
golden_short() {
    local m
    for m in smollm2-135m gemma3-270m; do
        local g=$GOLDEN/$m
        t "$m short $1" digest_is $m $g/short.ids $g/short.expect all --isa "$@"
        t "$m boundaries $1" boundaries_are $m $g/short.ids $g/short.expect all $g/short.boundaries --isa "$@"
    done
}

# golden_mini LEVEL [options]: 200 positions of each mini model; the boundaries of muse-glimmer are of its first 100.
golden_mini() {
    local a ids=$GOLDEN/smollm2-135m/long.ids g=$GOLDEN/mini
    for a in llama qwen2 qwen3 muse-glimmer; do
        t "mini $a $1" digest_is mini-$a $ids $g/$a.expect 200 --isa "$@"
    done
    t "mini muse-glimmer boundaries $1" boundaries_are mini-muse-glimmer $ids $g/muse-glimmer.expect 100 \
        $g/muse-glimmer.100.boundaries --isa "$@"
}

# unit_programs [PATTERN...]: test programs by name, "tests/base/test_mem"; all without a pattern. Those of
# tests/metal_kernels need a Metal GPU or the emulator behind the device: tools/check_metal_emulated.sh runs them.
unit_programs() {
    local f p
    for f in tests/*/test_*.c tests/*/check_*.c; do
        f=${f%.c}
        if [[ $f == tests/metal_kernels/* ]]; then continue; fi
        if [ $# -eq 0 ]; then echo "$f"; fi
        for p in "$@"; do if [[ $f == $p ]]; then echo "$f"; break; fi; done
    done
}

# unit_goals: what make must build for them.
unit_goals() { unit_programs | sed "s|^|$BUILD/|"; }

# unit_tests [PATTERN...]: runs those programs of BUILD, which the caller has built. A pattern that
# matches nothing is a failure: a renamed test must not drop out.
unit_tests() {
    local f p
    for p in "$@"; do
        if [ -z "$(unit_programs "$p")" ]; then t "a test named $p" false; fi
    done
    for f in $(unit_programs "$@"); do counted "$f" timeout -k 10 "$LIMIT" $RUN "$BUILD/$f"; done
}

# plain_kernels ARGS...: the kernels' objects of BUILD, to be built before a sanitizer's build of the rest
# where instrumenting them is of no use and costs minutes. make then finds them up to date.
plain_kernels() {
    local other='neon'
    if [ "$(uname -m)" != x86_64 ]; then other='avx2|avx512|vnni'; fi
    make -j"$(nproc)" BUILD="$BUILD" "$@" \
        $(find src/kernels -name '*.c' | grep -Ev "_($other)\.c$" | sed "s|.*|$BUILD/&.o|")
}

# contraction_tests FLAGS [ARGS...]: a build whose compiler may fuse a * b + c (FLAGS say so) must be
# refused by its own self-check, at every level. ARGS: more of make's arguments.
contraction_tests() {
    local flags="-std=c11 $1" folder=build/contract-${ARCH:-$(uname -m)} l; shift
    t "build with contraction" make -j"$(nproc)" BUILD=$folder CFLAGS=-O1 "$@" ISO_CFLAGS="$flags" \
        $folder/isobit || return
    for l in "${LEVELS[@]}"; do t "contraction refused $l" contraction_refused $folder/isobit "$l"; done
}
contraction_refused() {
    local ISO=$1 rc=0
    iso digest "$(model_file mini-llama)" $GOLDEN/smollm2-135m/short.ids --isa "$2" >"$TMP/out" 2>"$TMP/err" || rc=$?
    cat "$TMP/err"
    [ $rc -eq 1 ] && [ ! -s "$TMP/out" ] && grep -q 'do not compute exact-1' "$TMP/err"
}
