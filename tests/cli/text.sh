#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# text.sh - inspect, tokenize, template and run: what they print, and that their JSON is JSON.
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh
model=$(model_file smollm2-135m)
gemma=$(model_file gemma3-270m)

# prints WANT COMMAND...: the exact output.
prints() {
    local want=$1 got; shift
    got=$("$@"; echo "status $?") && [ "$got" = "$want
status 0" ] || { printf 'got:  %s\nwant: %s\n' "$got" "$want"; return 1; }
}
from() { local text=$1; shift; printf '%s' "$text" | iso "$@"; }
# json_has EXPRESSION COMMAND...: stdout is one JSON value j for which the Python expression holds.
json_has() {
    local test=$1; shift
    "$@" >"$TMP/json" || return 1
    python3 -c 'import json,sys; j = json.load(open(sys.argv[1])); assert eval(sys.argv[2]), j' "$TMP/json" "$test"
}

t "tokenize" prints '[19556, 216, 2]' from 'Hello <|im_end|>' tokenize "$model"
t "tokenize --no-special" prints '[19556, 2067, 108, 306, 79, 486, 108, 46]' \
    from 'Hello <|im_end|>' tokenize "$model" --no-special
t "tokenize nothing" prints '[]' from '' tokenize "$model"
t "tokenize adds BOS once" json_has 'j[0] == 2 and j.count(2) == 1' from 'Hello' tokenize "$gemma"
t "tokenize --no-bos" json_has '2 not in j' from 'Hello' tokenize "$gemma" --no-bos

t "template" prints '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
hi<|im_end|>
<|im_start|>assistant' from '[{"role":"user","content":"hi"}]' template "$model"
t "template: object, own system text, no prompt" prints '<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
hi<|im_end|>' from '{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}]}' \
    template "$model" --no-prompt
t "template: parts of text" exits 0 '^hi there' \
    from '[{"role":"user","content":[{"type":"text","text":"hi there"}]}]' template "$model"

t "inspect" exits 0 'runs here: llama, 30 layers of 576, 9 query and 3 KV heads of 64' iso inspect "$model"
t "inspect: window" exits 0 'window 512 on 15 layers' iso inspect "$gemma"
t "inspect --all" exits 0 '^token_embd.weight +Q8_0 +576 49152$' iso inspect "$model" --all
t "inspect --json" json_has 'j["runs"] and j["keys"]["general.architecture"] == "llama" and len(j["tensors"]) == 272' \
    iso inspect "$model" --json
t "inspect --json: what cannot run" json_has 'not j["runs"] and j["reason"]' \
    iso inspect "$(models)/peer/ggml-vocab-llama-bpe.gguf" --json
t "doctor --json" json_has 'any(r["check"] == "kernels" and r["state"] == "ok" for r in j)' \
    iso doctor --json --dir "$TMP/none"
t "bench --json" json_has '[r["test"] for r in j] == ["pp8", "tg4"] and all(r["tokens_per_s_mean"] > 0 for r in j)' \
    iso bench "$model" --json -p 8 -n 4 -r 2

# run: text, JSON and seeds.
t "run --raw" prints ' Paris.' iso run "$model" -p 'The capital of France is' --raw -n 2 --temp 0 -q
t "run --json" json_has 'j["n_prompt"] == 31 and j["n_answer"] == 8 and j["finish"] == "length" and not j["remote"]' \
    iso run "$model" -p hi -n 8 --temp 0 --json -q
t "run: the prompt from a file" eval 'printf hi >"$TMP/p"; json_has "j[\"n_prompt\"] == 31" \
    iso run "$model" -f "$TMP/p" -n 1 --json -q'
same_seed() {
    local a b c
    a=$(iso run "$model" -p hi -n 24 --seed 42 -q) && b=$(iso run "$model" -p hi -n 24 --seed 42 -q --threads 1) &&
        c=$(iso run "$model" -p hi -n 24 --seed 43 -q) || return 1
    printf '%s\n---\n%s\n---\n%s\n' "$a" "$b" "$c"
    [ "$a" = "$b" ] && [ "$a" != "$c" ]
}
t "run: the seed decides" same_seed
t "run stops at the context" json_has 'j["finish"] == "context" and j["n_prompt"] + j["n_answer"] <= 41' \
    iso run "$model" -p 'Count from one to one hundred.' -c 40 --temp 0 --json -q
chat() { printf 'My name is Ada.\nHi\n' | iso chat "$model" -n 6 --temp 0; }
t "chat: turns from stdin" exits 0 '.' chat
finish
