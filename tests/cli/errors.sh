#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# errors.sh - bad files, flags, ids and prompts end with a message that names them, never a crash.
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh
model=$(model_file smollm2-135m)
ids=$GOLDEN/smollm2-135m/short.ids
gone=$TMP/no-such-file

# Files (status 1: the use was right, the file is not).
t "missing model: inspect" exits 1 "$gone: No such file" iso inspect "$gone"
for c in run bench tokenize template; do
    t "missing model: $c" exits 1 "$gone: No such file" iso $c "$gone"
done
t "missing model: digest" exits 1 "$gone: No such file" iso digest "$gone" "$ids"
t "missing ids" exits 1 "$gone: No such file" iso digest "$model" "$gone"
t "missing prompt file" exits 1 "$gone: No such file" iso run "$model" -f "$gone" -q
t "missing receipts" exits 1 "$gone: No such file" iso verify-receipt "$gone"
t "folder as model" exits 1 'tests: is a directory' iso inspect tests
printf '<!doctype html>\n<html><body>Not found</body></html>\n' >"$TMP/page.gguf"
t "a web page as model" exits 1 'page.gguf: not a GGUF file' iso inspect "$TMP/page.gguf"
: >"$TMP/empty.gguf"
t "empty model" exits 1 'empty.gguf' iso digest "$TMP/empty.gguf" "$ids"
head -c 1000000 "$model" >"$TMP/cut.gguf"
t "truncated model" exits 1 'cut.gguf' iso digest "$TMP/cut.gguf" "$ids"
vocab=$(models)/peer/ggml-vocab-llama-bpe.gguf
t "vocabulary without weights: digest" exits 1 'isobit: ' iso digest "$vocab" "$ids"
t "vocabulary without weights: inspect" exits 0 'does not run here: ' iso inspect "$vocab"

# Flags (status 2).
t "--threads 0" exits 2 'threads 0: allowed 1 to 256' iso digest "$model" "$ids" --threads 0
t "--threads 257" exits 2 'threads 257: allowed 1 to 256' iso digest "$model" "$ids" --threads 257
t "--threads two" exits 2 "threads 'two' is not a number" iso digest "$model" "$ids" --threads two
t "--threads 1.5" exits 2 "threads '1.5' is not a whole number" iso digest "$model" "$ids" --threads 1.5
t "--threads -1" exits 2 "threads '-1' is not a whole number" iso digest "$model" "$ids" --threads -1
t "--threads without value" exits 2 'threads needs a value' iso digest "$model" "$ids" --threads
t "--json=1" exits 2 'json takes no value' iso inspect "$model" --json=1
t "--isa z80" exits 2 "instruction set 'z80'" iso digest "$model" "$ids" --isa z80
t "too many arguments" exits 2 "unexpected argument 'more'" iso inspect "$model" more
t "--temp -1" exits 2 'temp -1: allowed' iso run "$model" -p hi --temp -1
t "--top-p 2" exits 2 'top-p 2: allowed' iso run "$model" -p hi --top-p 2
t "-p and -f" exits 2 'not both' iso run "$model" -p hi -f "$ids"
t "chunk times batch" exits 2 'at most [0-9]+ rows' \
    iso digest "$model" $GOLDEN/smollm2-135m/long.ids --chunk 512 --batch 64
t "--prefill remote alone" exits 2 'needs --producer' iso run "$model" -p hi -q --prefill remote
t "--prefill sometimes" exits 2 'sometimes' iso run "$model" -p hi -q --prefill sometimes

# Ids and lengths.
from() { local text=$1; shift; printf '%s' "$text" | iso "$@"; }
t "id outside the vocabulary" exits 2 'id 49152 is outside the vocabulary of 49152' from '1 49152' digest "$model" -
t "negative id" exits 1 "'-4' after 2 ids is not an id" from '1 2 -4' digest "$model" -
t "id beyond 32 bits" exits 1 "after 1 ids is not an id" from '1 99999999999' digest "$model" -
t "word as id" exits 1 "'two' after 1 ids is not an id" from '1 two' digest "$model" -
t "no ids" exits 2 'holds no ids' from ' ' digest "$model" -
t "prompt beyond the context" exits 1 'context is full: the prompt has 31 tokens, the context 30' \
    iso run "$model" -p hi -c 30 -q
t "ids beyond the context" exits 1 'context is full' iso digest "$model" "$ids" --ctx 15
t "empty prompt" exits 2 'isobit: ' iso run "$model" -p '' --raw -q

# Text side.
t "template: not JSON" exits 1 'stdin: line' from '{' template "$model"
t "template: a number" exits 1 'must be an array of messages' from '7' template "$model"
t "template: no content" exits 1 'isobit: ' from '[{"role":"user"}]' template "$model"
t "template: 100,000 levels deep" exits 1 'isobit: ' \
    from "[{\"role\":\"user\",\"content\":$(printf '[%.0s' {1..100000})" template "$model"
t "tokenize: not UTF-8" exits 1 'not UTF-8: byte 0xff at offset 1' from $'a\xff\xf0\x9f' tokenize "$model"
finish
