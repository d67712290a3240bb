#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# producer.sh - timelines and traces of a producer, and what is said when nobody answers.
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh

OUT=$TMP/out
counted "tools/measure_producer.sh" env ISO="$ISO" OUT="$OUT" TMPDIR="$TMP" bash tools/measure_producer.sh
trace() { # four rows with names, events that lie behind one another in each of them
    python3 - "$OUT/trace.json" "$OUT/timeline.json" <<'PY'
import json, sys
trace, timeline = (json.load(open(f)) for f in sys.argv[1:])
rows = [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"]
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert rows == ["compute", "copy", "hash", "wire"], rows
assert len(events) == len(timeline["spans"]) > 100, len(events)
assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events)
for row in set(e["tid"] for e in events):
    starts = [e["ts"] for e in events if e["tid"] == row]
    assert starts == sorted(starts), rows[row]
s = timeline["summary"]
assert s["transfer_ms_under_compute"] <= s["transfer_ms"] <= s["copy_ms"] + s["hash_ms"] + s["wire_ms"] + 0.01
assert s["compute_ms"] <= s["prefill_ms"] + 0.01 and s["dropped"] == 0
PY
}
t "the trace has what the timeline has" trace

model=$(model_file smollm2-135m)
t "keys of two machines" make_nodes "$TMP"
fetched() {
    iso digest "$model" $GOLDEN/smollm2-135m/long.ids -n 66 --producer 127.0.0.1:"$PORT" --prefill remote \
        --dir "$TMP/consumer" | grep -q '^kv-visible'
}
if start_producer "$TMP" "$model" --timeline "$TMP/nowhere/timeline.json" --batch 64 >"$TMP/started"; then
    t "a timeline that cannot be written costs no hand-off" fetched
    stop_producer
    t "but it is said" grep -q 'timeline .*nowhere/timeline.json' "$TMP/producer.log"
else
    t "produce" eval 'cat "$TMP/started"; false'
fi
# Files without a vocabulary, as those for speed runs: ids travel, both sides compare zeros for the tokenizer.
silent=$TMP/silent.gguf
ids_only() {
    iso digest "$silent" "$TMP/few.ids" -n 70 --producer 127.0.0.1:"$PORT" --prefill remote --dir "$TMP/consumer" | grep -q '^kv-visible'
}
compared() { exits 0 '^equal: ' iso diff cpu 127.0.0.1:"$PORT" "$silent" "$TMP/few.ids" -n 70 --dir "$TMP/consumer"; }
seq 3 90 >"$TMP/few.ids"
t "a model without vocabulary" eval '${CC:-cc} -O2 -std=c11 -D_GNU_SOURCE -pthread -o "$TMP/synth" tools/synth_gguf.c -lm &&
    "$TMP/synth" tiny q4_k "$silent" layers 2 vocab 512'
if start_producer "$TMP" "$silent" >"$TMP/started"; then
    t "its pages are fetched" ids_only
    t "they are compared with the CPU's" compared
    t "a text for it is an error" exits 1 'the file has no tokenizer' iso run "$silent" -p hi -n 1
    stop_producer
else
    t "produce without vocabulary" eval 'cat "$TMP/started"; false'
fi
t "a ring needs a size" exits 2 "ring-mib" iso produce "$model" --ring-mib 0

dead() {
    iso run "$model" -p hi -n 4 --producer 127.0.0.1:1 --dir "$TMP/consumer" --prefill remote >"$TMP/dead" 2>&1
    local rc=$?
    cat "$TMP/dead"
    [ $rc -eq 1 ] && grep -q '127.0.0.1:1: ' "$TMP/dead" && ! grep -Eq '[a-z]+\.c:[0-9]+:' "$TMP/dead"
}
t "a dead port is named without a place in the program" dead
finish
