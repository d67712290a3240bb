#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# measure_producer.sh - one hand-off between two processes on loopback: how much of it hides under compute.
#
# usage: tools/measure_producer.sh [MODEL [TOKENS [IDS]]]
#   MODEL   a GGUF file (default: SmolLM2); one without vocabulary (tools/synth_gguf.c) will do
#   TOKENS  length of the prompt (default: 600)
#   IDS     file of token ids (default: the golden prompt of SmolLM2, or made up for other models)
# environment: ISO the program; DEVICE of the producer (default cpu), CONSUMER_DEVICE (default: the same),
#   LOCAL_DEVICE of the run to compare with (default: the consumer's), BATCH, RING_MIB, ROUNDS (default 2: the
#   first one warms up), OUT a folder for timeline.json and trace.json (default: none are kept),
#   HIDDEN (default 0.95 on a GPU, 0.5 on a CPU, whose wire and kernels share processors), FIRST (default 0.05),
#   LET_GO: milliseconds in which the producer must be free when a consumer goes away in the middle (default 100 on
#   a GPU, 1000 on a CPU, which may be shared with anything).
# Prints the summary of each round; fails when a bound or a digest does not hold.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
MODEL=${1:-$(model_file smollm2-135m)} TOKENS=${2:-600} IDS=${3:-}
DEVICE=${DEVICE:-cpu} CONSUMER_DEVICE=${CONSUMER_DEVICE:-$DEVICE} ROUNDS=${ROUNDS:-2} FIRST=${FIRST:-0.05}
LOCAL_DEVICE=${LOCAL_DEVICE:-$CONSUMER_DEVICE}
if [ "$DEVICE" = cpu ]; then HIDDEN=${HIDDEN:-0.5} LET_GO=${LET_GO:-1000}; else HIDDEN=${HIDDEN:-0.95} LET_GO=${LET_GO:-100}; fi
OUT=${OUT:-$TMP} START_TENTHS=${START_TENTHS:-3000}  # a 30B model is read and hashed first
mkdir -p "$OUT"
if [ -z "$IDS" ] && [ "$MODEL" = "$(model_file smollm2-135m)" ]; then IDS=$GOLDEN/smollm2-135m/long.ids; fi
if [ -z "$IDS" ] || [ "$(wc -w <"$IDS")" -lt "$TOKENS" ]; then
    IDS=$TMP/made.ids  # any ids will do for a clock; small ones are in every vocabulary
    awk -v n="$TOKENS" 'BEGIN {x = 1; for (i = 0; i < n; i++) {x = (x * 1103515245 + 12345) % 2147483648; print int(x / 65536) % 250 + 3}}' >"$IDS"
fi

produce=(--device "$DEVICE" --ctx "$TOKENS" --timeline "$OUT/timeline.json" --trace "$OUT/trace.json")
if [ -n "${BATCH:-}" ]; then produce+=(--batch "$BATCH"); fi
if [ -n "${RING_MIB:-}" ]; then produce+=(--ring-mib "$RING_MIB"); fi
digest=(digest "$MODEL" "$IDS" -n "$TOKENS" --chunk 512)

summary() { # of timeline.json; the last line is "ok" or what does not hold
    python3 - "$OUT/timeline.json" "$HIDDEN" "$FIRST" <<'PY'
import json, sys
t = json.load(open(sys.argv[1]))
s, hidden, first = t["summary"], float(sys.argv[2]), float(sys.argv[3])
print(f"{t['n_tokens']} tokens on {t['device']} {t['isa']}, steps of {t['chunk_rows']}, "
      f"{t['bytes'] / 2**20:.1f} MiB of pages, ring {t['ring_slots']} x "
      f"{t['ring_bytes'] / max(t['ring_slots'], 1) / 2**20:.2f} MiB")
print(f"prefill {s['prefill_ms']:.1f} ms (compute {s['compute_ms']:.1f}), copy {s['copy_ms']:.1f}, "
      f"hash {s['hash_ms']:.1f}, wire {s['wire_ms']:.1f}; transfer {s['transfer_ms']:.1f}, "
      f"of it under compute {s['transfer_ms_under_compute']:.1f}")
print(f"hidden_share {s['hidden_share']:.4f}  first_page_share_of_prefill {s['first_page_share_of_prefill']:.4f} "
      f"({s['first_page_ms']:.1f} ms)")
bad = [] if s["hidden_share"] >= hidden else [f"hidden_share {s['hidden_share']:.4f} < {hidden}"]
if s["first_page_share_of_prefill"] >= first:
    bad.append(f"first page at {s['first_page_share_of_prefill']:.4f} >= {first}")
print("; ".join(bad) or "ok")
sys.exit(len(bad) > 0)
PY
}

fetch() { # one hand-off; its digest must be that of the local run
    rm -f "$OUT/timeline.json"
    iso "${digest[@]}" --device "$CONSUMER_DEVICE" --prefill remote --producer 127.0.0.1:"$PORT" \
        --dir "$TMP/consumer" >"$TMP/there" || return 1
    cat "$TMP/there"
    grep -q '^kv-visible [0-9a-f]\{64\}$' "$TMP/here" && cmp "$TMP/here" "$TMP/there"
}
complete() { # the producer writes its files when the ACK is in
    await 100 0.1 test -s "$OUT/timeline.json" || { cat "$TMP/producer.log"; return 1; }
}
raw_rate() { # bytes per second of a plain TLS stream on the same loopback, for the consumer's receipts
    python3 tools/raw_tls.py listen 127.0.0.1:0 >"$TMP/raw.port" & local server=$! rc=0
    await 100 0.1 test -s "$TMP/raw.port"
    python3 tools/raw_tls.py 127.0.0.1:"$(cat "$TMP/raw.port")" >"$TMP/raw" || rc=1
    kill $server
    return $rc
}
wire() {
    tail -n 1 "$TMP/consumer/receipts.jsonl" | python3 -c 'import json, sys; j = json.load(sys.stdin)
rate, share = j["wire_bytes_s"], j["raw_tls_share_ppm"]
print(f"     | pages at {rate / 1e6:.0f} MB/s", "" if share is None else f"({share / 1e6:.3f} of a raw TLS stream)")'
}
ended() { grep ' transfer peer=' "$TMP/producer.log"; } # a line for each transfer, the last one last
accepted() { grep -c ' accepted peer=' "$TMP/producer.log"; }
n_accepted() { [ "$(accepted)" -ge "$1" ]; }
n_ended() { [ "$(ended | wc -l)" -ge "$1" ]; }
gone() { # a consumer dies soon after its request is accepted; how long the producer holds engine and session
    local pid next line ms
    next=$(($(accepted) + 1))
    await 100 0.1 n_ended $((next - 1)) # the one before may still be writing its line
    $RUN "$ISO" "${digest[@]}" --device "$CONSUMER_DEVICE" --prefill remote --producer 127.0.0.1:"$PORT" \
        --dir "$TMP/consumer" >/dev/null 2>&1 & pid=$!
    await $((START_TENTHS * 10)) 0.01 n_accepted $next
    sleep 0.02; kill -KILL $pid; wait $pid 2>/dev/null
    await 100 0.1 n_ended $next || { cat "$TMP/producer.log"; return 1; }
    line=$(ended | tail -n 1) ms=${line##*let_go_ms=}
    case $line in *reason=OK*) echo "not run: the hand-off was complete before its consumer could be stopped" >"$TMP/gone"; return 0 ;; esac
    echo "after $ms ms, ${line##*request=}" >"$TMP/gone"
    [ "$ms" -le "$LET_GO" ] || { cat "$TMP/gone"; return 1; }
}
here() { iso "${digest[@]}" --device "$LOCAL_DEVICE" --visible >"$TMP/here"; }

t "keys of two machines" make_nodes "$TMP" || finish
if t "raw TLS stream" raw_rate; then digest+=(--raw-tls-rate "$(cat "$TMP/raw")"); fi
t "local run on $LOCAL_DEVICE" here
if ISO_LOG=debug start_producer "$TMP" "$MODEL" "${produce[@]}" >"$TMP/started"; then
    for ((round = 1; round <= ROUNDS; round++)); do
        t "hand-off $round: digests of $DEVICE here, there and of $LOCAL_DEVICE are equal" fetch
        t "timeline $round" complete || break
        text=$(summary); rc=$?
        sed 's/^/     | /' <<<"$text"
        wire
        if [ "$round" -eq "$ROUNDS" ]; then t "hidden at least $HIDDEN, first page before $FIRST" test $rc -eq 0; fi
    done
    t "a consumer that goes away is let go within $LET_GO ms" gone
    if [ -s "$TMP/gone" ]; then sed 's/^/     | /' "$TMP/gone"; fi
    stop_producer; rc=$?
    t "SIGTERM ends the producer" test $rc -eq 0
else
    t "produce" eval 'cat "$TMP/started"; false'
fi
finish
