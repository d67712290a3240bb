#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# diff.sh - isobit diff: equal runs are equal, and a flipped bit is named: tensor, position, element.
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh
find_levels
model=$(model_file mini-llama) muse=$(model_file mini-muse-glimmer)
ids=$GOLDEN/smollm2-135m/long.ids
N=70  # a whole page and a part of one
best=${LEVELS[-1]}

dump() { iso digest "$1" $ids -n "$2" --boundaries "$3" --chunk 33; }
t "dump of mini-llama" dump "$model" $N "$TMP/llama"
t "dump of mini-muse-glimmer" dump "$muse" $N "$TMP/muse"

# Equal: dump and dump, dump and backend, two backends (every level of the machine against the lowest).
t "two equal dumps" exits 0 "^equal: .*and 8 pages of $N positions" \
    eval 'cp -r "$TMP/llama" "$TMP/again"; iso diff "$TMP/llama" "$TMP/again" "$model" $ids -n '$N
t "backend and dump" exits 0 '^equal: .*a dump has no logits' iso diff cpu "$TMP/muse" "$muse" $ids -n $N
for l in "${LEVELS[@]}"; do
    t "cpu:ref and cpu:$l" exits 0 "^equal: [0-9]+ tensors and [0-9]+ pages of $N" \
        iso diff cpu:ref "cpu:$l" "$muse" $ids -n $N
done
t "chunks of 7" exits 0 '^equal: ' iso diff cpu "$TMP/llama" "$model" $ids -n $N --chunk 7
t "--json of equal runs" exits 0 '"equal": true' iso diff cpu "$TMP/llama" "$model" $ids -n $N --json

# Flipped bits, anywhere in a dump.
t "flipped bits: mini-llama" python3 tests/cli/flip_bits.py "$TMP/llama" "$model" $ids $N 150 $RUN "$ISO"
t "flipped bits: mini-muse-glimmer" python3 tests/cli/flip_bits.py "$TMP/muse" "$muse" $ids $N 150 $RUN "$ISO"

# A run against a dump with one other value: text, and how far it spread (nowhere: the run is not changed).
flip() {  # FILE OFFSET: the lowest bit of a byte
    python3 -c 'import sys
f = open(sys.argv[1], "r+b"); at = int(sys.argv[2]); f.seek(at); b = f.read(1)[0]; f.seek(at); f.write(bytes([b ^ 1]))' "$@"
}
width() { echo $(($(stat -c %s "$1") / N / 4)); }
named() {
    local f=$TMP/again/02.ffn_act.f32
    flip "$f" $((4 * (41 * $(width "$f") + 5))) || return 1
    exits 1 '^first difference: 02.ffn_act, position 41, element 5$' iso diff cpu "$TMP/again" "$model" $ids -n $N &&
        exits 1 '^  1 ulp apart; 1 of [0-9]+ elements' iso diff cpu "$TMP/again" "$model" $ids -n $N &&
        exits 1 '^  spread: 0 of [0-9]+ later tensors, 1 of 70 positions \(41 to 41\)$' \
            iso diff "$TMP/again" "cpu:$best" "$model" $ids -n $N &&
        exits 1 '^pages: all 8 equal$' iso diff cpu "$TMP/again" "$model" $ids -n $N
    local rc=$?; flip "$f" $((4 * (41 * $(width "$f") + 5))); return $rc
}
t "a run and a dump with one other bit" named

# Other ids from position 3 on: the embedding of that position is the first difference, and it spreads.
other_ids() {
    sed -n '1,3p' <(tr -s ' \n' '\n\n' <$ids) >"$TMP/other.ids"
    tr -s ' \n' '\n\n' <$ids | sed -n '5,70p' >>"$TMP/other.ids"
    iso digest "$model" "$TMP/other.ids" -n 60 --boundaries "$TMP/other" &&
        exits 1 '^first difference: embd, position 3, element' iso diff "$TMP/other" cpu "$model" $ids -n 60 &&
        exits 1 '^first page: layer 0, head 0, page 0, k_(hi|lo), position 3,' \
            iso diff cpu "$TMP/other" "$model" $ids -n 60
}
t "other ids" other_ids

# What is wrong with a side has a message that names it, and status 2.
t "dump of another model" exits 2 'malformed.*bytes, the model.s 70 positions' \
    iso diff "$TMP/llama" "$TMP/muse" "$(model_file smollm2-135m)" $ids -n $N
t "dump with tensors of another family" exits 2 '(embd_norm|gate|attn_gated).f32: the model.s run of 70 positions has no such tensor' \
    iso diff cpu "$TMP/muse" "$model" $ids -n $N
t "dump of another length" exits 2 'the model.s 64 positions' iso diff cpu "$TMP/llama" "$model" $ids -n 64
damaged() {  # WANT COMMAND...: a copy that the command damages
    local want=$1; shift
    rm -rf "$TMP/bad"; cp -r "$TMP/llama" "$TMP/bad"
    (cd "$TMP/bad" && "$@") && exits 2 "$want" iso diff "$TMP/llama" "$TMP/bad" "$model" $ids -n $N
}
t "missing tensor" damaged '01.k_rope.f32: No such file' rm 01.k_rope.f32
t "missing page" damaged '01.page.h1.p1.bin: No such file' rm 01.page.h1.p1.bin
t "short tensor" damaged 'result_norm.f32: [0-9]+ bytes' truncate -s -4 result_norm.f32
t "long tensor" damaged 'embd.f32: [0-9]+ bytes' truncate -s +4 embd.f32
t "short page" damaged '00.page.h0.p0.bin: [0-9]+ bytes, a page of the model has' truncate -s -1 00.page.h0.p0.bin
t "page too many" damaged '00.page.h0.p2.bin: the model' cp 00.page.h0.p1.bin 00.page.h0.p2.bin
t "a note beside the dump" eval 'rm -rf "$TMP/bad"; cp -r "$TMP/llama" "$TMP/bad"; echo why >"$TMP/bad/README"
    exits 0 "^equal" iso diff "$TMP/llama" "$TMP/bad" "$model" $ids -n '$N
t "no such folder" exits 2 'no-such is no backend, no HOST:PORT and no dump' \
    iso diff cpu "$TMP/no-such" "$model" $ids
t "a file as a side" exits 2 'is no folder' iso diff cpu "$model" "$model" $ids
t "unknown level" exits 2 "instruction set 'z80'" iso diff cpu cpu:z80 "$model" $ids
t "missing model" exits 2 'no-such: No such file' iso diff cpu cpu "$TMP/no-such" $ids
t "no ids" exits 2 'holds no ids' iso diff cpu cpu "$model" /dev/null

# Across a hand-off: what a producer sends is what a run here has, page by page.
K=$TMP/nodes
mkdir "$K"
t "keys of two machines" make_nodes "$K"
for m in llama muse-glimmer; do
    file=$(model_file mini-$m)
    if ! start_producer "$K" "$file" --isa "${LEVELS[0]}" >"$TMP/started"; then
        t "produce mini-$m" eval 'cat "$TMP/started"; false'
        continue
    fi
    there=127.0.0.1:$PORT
    t "mini-$m: a producer and a run here" exits 0 '^equal: [0-9]+ pages of 199 positions' \
        iso diff "cpu:$best" $there "$file" $ids -n 200 --dir "$K/consumer"
    t "mini-$m: the other way round, audited" exits 0 '^equal: ' \
        iso diff $there cpu "$file" $ids -n 130 --dir "$K/consumer" --audit 2
    t "mini-$m: a producer and a dump" exits 0 '^equal: 8 pages of 69 positions' \
        iso diff $there "$TMP/${m%-glimmer}" "$file" $ids -n $N --dir "$K/consumer"
    if [ $m = llama ]; then
        d=$((($(stat -c %s "$TMP/again/01.page.h1.p1.bin") - 512) / 160))
        flip "$TMP/again/01.page.h1.p1.bin" $((d * 3 + 7))
        t "mini-$m: a page that differs from the producer's" exits 1 \
            '^first difference: layer 1, head 1, page 1, k_hi, position 67, element 7$' \
            iso diff "$TMP/again" $there "$file" $ids -n $N --dir "$K/consumer"
        t "another model is refused" exits 2 'WEIGHTS|weights' \
            iso diff cpu $there "$muse" $ids -n $N --dir "$K/consumer"
    fi
    stop_producer; rc=$?
    t "mini-$m: the producer ends" test $rc -eq 0
done
t "no producer" exits 2 'onnection refused' iso diff cpu 127.0.0.1:1 "$model" $ids -n $N --dir "$K/consumer"
finish
