#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# identity.sh - the fingerprints that `isobit identity` prints are those of receipts, manifests, benches.
#
# usage: identity.sh [DEVICE [LEVEL...]]     default: cpu, every level of this machine (a GPU: cuda sm90 generic)
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh
device=${1:-cpu}
find_levels
if [ $# -gt 1 ]; then shift; levels=("$@"); else levels=("${LEVELS[@]}"); fi
model=$(model_file smollm2-135m)
mkdir "$TMP/nodes"

# check EXPRESSION FILE...: Python over the identity I, the files' JSON lines A[0], A[1]... and kernels(DEVICE, LEVEL).
check() {
    python3 - "$@" <<'P'
import json, sys
def lines(path):
    text = open(path).read()
    try: return [json.loads(text)]
    except ValueError: return [json.loads(x) for x in text.splitlines()]
I, A = None, [lines(p) for p in sys.argv[2:]]
I = A.pop(0)[0]
def backend(device): return next(b for b in I["backends"] if b["device"] == device)
def kernels(device, isa):
    return next(l for l in backend(device)["levels"] if l["isa"] == (backend(device)["auto"] if isa == "auto" else isa))["kernels"]
ok = eval("(" + sys.argv[1] + ")")
if not ok: print(sys.argv[1], "is", ok, *A, sep="\n")
sys.exit(not ok)
P
}
identity() { iso identity --json >"$TMP/identity"; }
t "identity --json" identity
t "version, arithmetic, pages" check 'I["version"] and I["arithmetic"] == "exact-1" and I["page_format"] == "isobit-page-1"' \
    "$TMP/identity"
t "commit as --version says" check "I['version'] + ' (' + I['commit'] + ') ' + I['arithmetic'] in '''$(iso --version)'''" \
    "$TMP/identity"
t "levels of the CPU: ${LEVELS[*]}" check "[l['isa'] for l in backend('cpu')['levels'] if 'kernels' in l] == '${LEVELS[*]}'.split()" \
    "$TMP/identity"
t "each level has its own digest" check 'len({l.get("kernels", l["isa"]) for b in I["backends"] for l in b["levels"]}) ==
    sum(len(b["levels"]) for b in I["backends"])' "$TMP/identity"
t "what does not run says why" check 'all(len(l["reason"]) > 20 for b in I["backends"] for l in b["levels"] if "kernels" not in l)' \
    "$TMP/identity"
t "the same twice" eval 'iso identity --json | cmp - "$TMP/identity"'
t "text for people" exits 0 "^cpu +${LEVELS[0]} +[0-9a-f]{64}" iso identity

# A model: the digests that the producer and the manifest name.
t "identity of a model" eval 'iso identity "$model" --json >"$TMP/model"'
t "keys of two nodes" make_nodes "$TMP/nodes"
ids=$GOLDEN/smollm2-135m/long.ids

one_level() { # LEVEL: a hand-off from it to the CPU's highest level
    rm -f "$TMP"/nodes/*/receipts.jsonl
    cat "$TMP/started"
    iso digest "$model" $ids -n 66 --producer 127.0.0.1:"$PORT" --dir "$TMP/nodes/consumer" || return 1
}
sealed() { # LEVEL
    local both=("$TMP/model" "$TMP/nodes/producer/receipts.jsonl" "$TMP/nodes/consumer/receipts.jsonl" "$TMP/nodes/producer.ready")
    check "all(r['manifest']['kernels'] == kernels('$device', '$1') and r['manifest']['build'] == I['commit'] and
               r['manifest']['device'] == '$device' and r['manifest']['isa'] == '$1' for a in A[:2] for r in a)" "${both[@]}" &&
        check "A[0][0]['kernels'] == kernels('$device', '$1') and A[0][0]['build'] == I['commit']" "${both[@]}" &&
        check "A[1][0]['kernels'] == kernels('cpu', 'auto') and A[1][0]['isa'] == backend('cpu')['auto'] and
               A[1][0]['build'] == I['commit']" "${both[@]}" &&
        check "A[2][0]['kernels'] == kernels('$device', '$1') and A[2][0]['weights'] == I['model']['weights']" "${both[@]}" &&
        check "all(A[0][0]['manifest']['request']['identity'][k] == I['model'][k]
               for k in ('arithmetic', 'weights', 'tokenizer', 'chat_template', 'page_format', 'context'))" "${both[@]}"
}
for level in "${levels[@]}"; do
    if ! start_producer "$TMP/nodes" "$model" --device "$device" --isa "$level" >"$TMP/started"; then
        t "producer $device $level" eval 'cat "$TMP/started"; false'
        continue
    fi
    t "hand-off from $device $level" one_level
    stop_producer
    t "receipts of both sides name its kernels" sealed "$level"
    for who in producer consumer; do
        t "the receipt of the $who is good" exits 0 '^1: good' iso verify-receipt "$TMP/nodes/$who/receipts.jsonl"
    done
done

bench_row() {
    iso bench "$model" --device "$device" --isa "${levels[0]}" -p 8 -n 0 -r 1 --json >"$TMP/bench" &&
        check "A[0][0][0]['kernels'] == kernels('$device', '${levels[0]}')" "$TMP/identity" "$TMP/bench"
}
t "a bench row names the same kernels" bench_row
answer() {
    iso run "$model" -p hi -n 2 --temp 0 --device "$device" --isa "${levels[0]}" --json >"$TMP/answer" &&
        check "A[0][0]['kernels'] == kernels('$device', '${levels[0]}') and A[0][0]['build'] == I['commit'] and
               A[0][0]['device'] == '$device' and A[0][0]['isa'] == '${levels[0]}'" "$TMP/identity" "$TMP/answer"
}
t "an answer names them too" answer
lie() { # FIELD: another value in the producer's own line contradicts what it signed
    python3 -c 'import json, sys; r = json.loads(open(sys.argv[1]).readline()); r[sys.argv[2]] = "0" * 64
print(json.dumps(r))' "$TMP/nodes/producer/receipts.jsonl" "$1" >"$TMP/lie"
    exits 1 "^1: BAD: \"$1\" is not that of the manifest" iso verify-receipt "$TMP/lie"
}
for field in kernels build isa; do t "a producer's receipt with another $field is bad" lie $field; done
finish
