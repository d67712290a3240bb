#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# loud.sh - a GPU that is missing, wrong, full or lost is an error with a name, never a run on the CPU.
#
# usage: loud.sh BUILD     BUILD/isobit was built with CUDA=1; BUILD/isobit-fake is the same program with the
# runtime of fake_cudart.c (make CUDA=1 BUILD/isobit-fake). Needs no GPU; with one, the first tests hide it.
cd "$(dirname "$0")/../.." || exit 1
. tools/golden.sh
REAL=$1/isobit FAKE=$1/isobit-fake
model=$(model_file mini-llama) ids=$GOLDEN/smollm2-135m/short.ids
smollm=$(model_file smollm2-135m)

# refused PATTERN PROGRAM COMMAND...: status 1, a message that matches, and not one byte of a result.
refused() {
    local want=$1 ISO=$2 rc=0; shift 2
    iso "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    cat "$TMP/err"
    if [ $rc -ne 1 ]; then echo "status $rc, expected 1"; return 1; fi
    if [ -s "$TMP/out" ]; then echo "it computed something:"; head -n 3 "$TMP/out"; return 1; fi
    grep -Eq "^isobit: .*$want" "$TMP/err" || { echo "no line matches: $want"; return 1; }
}
# Every command that takes --device.
everywhere() { # PATTERN PROGRAM
    refused "$1" "$2" digest "$model" $ids --device cuda &&
        refused "$1" "$2" bench "$model" -p 8 -n 2 -r 1 --json --device cuda &&
        refused "$1" "$2" run "$smollm" -p hi -n 2 -q --device cuda &&
        refused "$1" "$2" produce "$smollm" --listen 127.0.0.1:0 --dir "$TMP/nodes/producer" --device cuda
}
reasons() { # PATTERN PROGRAM: `identity` does not fail, but names the reason for each level
    local ISO=$2
    iso identity --json >"$TMP/identity" || return 1
    python3 - "$TMP/identity" "$1" <<'P'
import json, re, sys
cuda = next(b for b in json.load(open(sys.argv[1]))["backends"] if b["device"] == "cuda")
print(cuda)
sys.exit(not (cuda["auto"] is None and cuda["images"] and
              all("kernels" not in l and re.search(sys.argv[2], l["reason"]) for l in cuda["levels"])))
P
}
mkdir "$TMP/nodes"
t "keys" make_nodes "$TMP/nodes"

# The real runtime. Without a GPU both are "no driver"; with one the second is "no device".
export CUDA_VISIBLE_DEVICES=
t "no GPU to see: every command" everywhere 'no CUDA GPU: [a-zA-Z]' "$REAL"
t "no GPU to see: identity says why" reasons 'no CUDA GPU: ' "$REAL"
unset CUDA_VISIBLE_DEVICES
if ! nvidia-smi -L >/dev/null 2>&1; then
    t "no driver: every command" everywhere 'no CUDA GPU: CUDA driver version is insufficient' "$REAL"
    t "no driver: a level of the GPU" refused 'no CUDA GPU' "$REAL" digest "$model" $ids --device cuda --isa sm90
fi
cpu() { local ISO=$REAL; iso digest "$model" $ids >"$TMP/out" && grep -q '^logits-chain' "$TMP/out"; }
t "the CPU runs when it is asked for" cpu

# The same program with a runtime that has faults.
fake() { # FAULT PATTERN
    export ISO_FAKE_CUDA=$1
    everywhere "$2" "$FAKE" && case $1 in no-* | busy | arch | old) reasons "$2" "$FAKE" ;; esac
}
t "no driver" fake no-driver 'no CUDA GPU: CUDA driver version is insufficient'
t "no device" fake no-device 'no CUDA GPU: no CUDA-capable device'
t "device busy" fake busy 'cudaErrorDevicesUnavailable'
t "no kernels for the chip" fake arch 'this build has no kernels for Fake GPU \(sm_90\)'
t "a chip that is too old" fake old 'Fake GPU is sm_75'
t "wrong kernels" fake none 'do not compute exact-1|products of .* differ'
for n in 1 2 3 9 20; do t "out of memory at allocation $n" fake nomem:$n 'out of memory|bytes of GPU memory, .* are free'; done
for n in 1 2 3; do t "out of pinned memory at allocation $n" fake host-nomem:$n 'cudaErrorMemoryAllocation|out of memory'; done
for n in 1 2 7 40; do t "lost at launch $n" fake lost:$n 'Fake GPU: .*cudaErrorLaunchFailure'; done
for k in quantize stream pack heads attention embed upload norm; do
    t "no image of the kernels named *$k*" fake kernel:$k 'Fake GPU: no kernel image .*cudaErrorNoKernelImageForDevice'
done
unset ISO_FAKE_CUDA
same_images() { # both programs hold the same GPU code
    "$REAL" identity --json >"$TMP/real" && "$FAKE" identity --json >"$TMP/fake" && python3 - "$TMP/real" "$TMP/fake" <<'P'
import json, sys
images = [next(b for b in json.load(open(p))["backends"] if b["device"] == "cuda") for p in sys.argv[1:]]
print(images)
kernels = {l.get("kernels") for l in images[1]["levels"]}
sys.exit(not (images[0]["images"] and images[0]["images"] == images[1]["images"] and len(kernels) == 2 and None not in kernels))
P
}
t "identity lists the images; the fake sm_90 has a digest for each level" same_images
finish
