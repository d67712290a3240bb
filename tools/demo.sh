#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# demo.sh - `make demo`: one prompt from a producer to a consumer, once more without, and both compared.
#
# Two nodes with their own keys, as two machines would have, talk over loopback; the producer uses other
# kernels than the consumer where this machine has several. The status is 0 only when all bits agree.
cd "$(dirname "$0")/.." || exit 1
. tools/golden.sh
die() { echo "demo: $*" >&2; exit 1; }

bash tools/fetch_models.sh smollm2 >/dev/null || die "the model is missing: run tools/fetch_models.sh smollm2"
model=$(model_file smollm2-135m)
find_levels
level=${LEVELS[1]:-${LEVELS[0]}}

make_nodes "$TMP" >"$TMP/keys.log" 2>&1 || { cat "$TMP/keys.log"; die "no keys"; }
start_producer "$TMP" "$model" --isa "$level" || die "no producer"
echo "model     SmolLM2-135M-Instruct Q4_1"
echo "producer  node producer, port $PORT, kernels $level"
echo "consumer  node consumer, kernels ${LEVELS[-1]}"

cat >"$TMP/prompt" <<'TEXT'
A lighthouse keeper wrote this in her log: "The lamp was lit at dusk. Towards midnight the wind turned
to the north-west and the sea came over the lower gallery. Two fishing boats passed at one o'clock,
close under the rocks; I sounded the horn until they stood off. At four the rain stopped, and before
sunrise the coast was clear for thirty miles. No ship was lost. I put out the lamp at half past six,
trimmed the wick, and slept until the relief boat came with bread, oil and letters."
What did the keeper do when the fishing boats came close, and why?
TEXT
# answer NAME [options]: streams the text, keeps it, and writes the report beside it.
answer() {
    local name=$1; shift
    printf '\n%s\n' "--- $name ---"
    iso run "$model" -f "$TMP/prompt" -n 64 --temp 0 -q --report "$TMP/$name.json" "$@" | tee "$TMP/$name.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ]
}
answer remote --producer 127.0.0.1:"$PORT" --dir "$TMP/consumer" --peer producer --prefill remote --audit 4 ||
    { cat "$TMP/producer.log"; die "the hand-off failed"; }
answer local || die "the local run failed"
stop_producer || die "the producer ended with status $?"
iso verify-receipt "$TMP/consumer/receipts.jsonl" >"$TMP/receipt" || { cat "$TMP/receipt"; die "bad receipt"; }

echo
python3 - "$TMP/remote.json" "$TMP/local.json" <<'PY' || die "no table"
import json, sys
remote, local = (json.load(open(f)) for f in sys.argv[1:])
h = remote["handoff"]
def row(name, a, b=""): print(f"{name:28} {a:>20} {b:>20}")
row("", "with the producer", "alone")
row("first logits, SHA-256", remote["first_logits"][:16], local["first_logits"][:16])
row("prompt tokens", remote["n_prompt"], local["n_prompt"])
row("  computed by the consumer", h["computed_locally"], local["n_prompt"])
row("pages received", h["pages"])
row("bytes received", f'{h["bytes"]:,}')
row("wire rate while busy, MB/s", f'{h["bytes"] / h["wire_busy_s"] / 1e6:.0f}' if h["wire_busy_s"] else "-")
row("positions audited", h["audited"])
row("time to first token, ms", f'{1e3 * remote["first_token_s"]:.1f}', f'{1e3 * local["first_token_s"]:.1f}')
assert remote["remote"] and not local["remote"] and h["committed"], "the prompt did not come from the producer"
PY
same() { [ "$(field remote)" = "$(field local)" ] && cmp "$TMP/remote.txt" "$TMP/local.txt"; }
field() {
    sed -n 's/.*"first_logits": *"\([0-9a-f]*\)".*/\1/p' "$TMP/$1.json" | grep -Ex '[0-9a-f]{64}' || echo "none in $1"
}
same || die "the first logits or the texts differ"
echo
echo "equal bits: the first logits, and the text byte for byte; receipt: $(head -n 1 "$TMP/receipt")"
