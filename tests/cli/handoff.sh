#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# handoff.sh - two processes with their own keys: pages from a producer give the bits of a local run.
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh
find_levels
N=$TMP/nodes
mkdir "$N"
t "keys of two machines" make_nodes "$N"
t "key files are private" test -z "$(find "$N"/producer "$N"/consumer -type f -perm /077)"
t "keys list" exits 0 'REVOKED|producer.*this node, CA' iso keys list --dir "$N/producer"

json() { python3 -c 'import json,sys; j = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$1" "$2"; }
# Here and there, with different kernels where the machine has several; whole pages and a cut one.
visible_equal() {
    local m=$1 n=$2 ids=$GOLDEN/$1/long.ids; shift 2
    iso digest "$(model_file $m)" $ids -n $n --visible "$@" >"$TMP/here" &&
        iso digest "$(model_file $m)" $ids -n $n "$@" --producer 127.0.0.1:$PORT --dir "$N/consumer" >"$TMP/there" ||
        return 1
    cat "$TMP/here" "$TMP/there"
    grep -q '^kv-visible [0-9a-f]\{64\}$' "$TMP/here" && cmp "$TMP/here" "$TMP/there" &&
        cmp <(head -n 1 "$TMP/here") <(sed -n "${n}p" $GOLDEN/$m/long.expect)
}
for m in smollm2-135m gemma3-270m; do
    model=$(model_file $m)
    if ! start_producer "$N" "$model" --isa "${LEVELS[1]:-ref}" >"$TMP/log"; then
        t "produce $m" eval 'cat "$TMP/log"; false'
        continue
    fi
    t "produce $m" kill -0 "$PRODUCER"
    for n in 2 64 65 66 200; do t "$m: $n ids, there as here" visible_equal $m $n; done
    if [ $m = gemma3-270m ]; then t "$m: beyond the window" visible_equal $m 700; fi
    t "$m: 130 ids with an audit" visible_equal $m 130 --audit 5
    remote() { iso run "$model" -p hi -n 8 --temp 0 -q --producer 127.0.0.1:$PORT --dir "$N/consumer" "$@"; }
    reported() {
        remote --prefill remote --report "$TMP/r.json" && json "$TMP/r.json" \
            'j["remote"] and j["handoff"]["committed"] and j["handoff"]["computed_locally"] == 1'
    }
    t "$m: run --prefill remote --report" reported
    share() {
        remote --prefill remote --raw-tls-rate 1000000000 && tail -n 1 "$N/consumer/receipts.jsonl" >"$TMP/r.json" &&
            json "$TMP/r.json" '0.95 < j["raw_tls_share_ppm"] / (j["bytes"] * 1000 / j["times_us"]["wire_busy"]) < 1.05'
    }
    t "$m: the wire's share of a raw stream in the receipt" share
    t "$m: other model refused" exits 1 'WEIGHTS|weights' iso digest "$(model_file mini-llama)" \
        $GOLDEN/smollm2-135m/short.ids --producer 127.0.0.1:$PORT --dir "$N/consumer" --prefill remote
    stop_producer; rc=$?  # here, not in t's subshell, whose child it is not
    t "$m: SIGTERM ends the producer" test $rc -eq 0
done

# A producer that is gone: remote fails with a reason, auto computes here and says so.
model=$(model_file smollm2-135m)
gone() { iso run "$model" -p hi -n 4 --temp 0 --producer 127.0.0.1:"$PORT" --dir "$N/consumer" --prefill "$1"; }
t "no producer: remote fails" exits 1 'onnection refused' gone remote
t "no producer: auto computes here" exits 0 'UNREACHABLE; computed here' gone auto
t "no keys" exits 1 'isobit: ' iso run "$model" -p hi -q --producer 127.0.0.1:1 --dir "$N/nobody"

# A revoked consumer gets nothing.
revoked() {
    iso keys revoke consumer --dir "$N/producer" && start_producer "$N" "$model" || return 1
    exits 1 'isobit: ' gone remote; local rc=$?
    stop_producer && return $rc
}
for who in consumer producer; do
    t "receipts of the $who" exits 0 '^1: good, '$who', OK' iso verify-receipt "$N/$who/receipts.jsonl"
done
flipped() {
    sed 's/"pages":\([0-9]\)/"pages":9\1/' "$N/consumer/receipts.jsonl" >"$TMP/flipped"
    ! cmp -s "$N/consumer/receipts.jsonl" "$TMP/flipped" && exits 1 '^1: BAD' iso verify-receipt "$TMP/flipped"
}
t "an altered receipt is bad" flipped
t "a revoked consumer is refused" revoked
finish
