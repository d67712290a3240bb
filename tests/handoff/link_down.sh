#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# link_down.sh - the link between two nodes goes away in the middle of a transfer, without a FIN.
#
# In a network namespace of its own; the loopback interface is the link.
# usage: link_down.sh [may]     may: status 77 and the reason where no namespace can be made here
cd "$(dirname "$0")/../.." || exit 1
if [ "${1:-}" != inside ]; then
    as_root=; [ "$(id -u)" -eq 0 ] || as_root=--map-root-user
    unshare $as_root --net true 2>/dev/null || { echo "no network namespace may be made here"; exit 77; }
    [ "${1:-}" != may ] || exit 0
    exec unshare $as_root --net bash "$0" inside
fi
. tools/golden.sh

# link up|down: through the interface's flags, so that no package is needed for it.
link() {
    python3 - "$1" <<'PY'
import fcntl, socket, struct, sys
GET, SET, UP = 0x8913, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    flags = struct.unpack("16xh", fcntl.ioctl(s, GET, struct.pack("16sh", b"lo", 0))[:18])[0]
    fcntl.ioctl(s, SET, struct.pack("16sh", b"lo", flags | UP if sys.argv[1] == "up" else flags & ~UP))
PY
}

N=$TMP/nodes MODEL=$(model_file smollm2-135m)
mkdir "$N"
python3 -c 'print("The quick brown fox jumps over the lazy dog. " * 20)' >"$TMP/prompt"
t "a link" link up
t "keys" make_nodes "$N"
t "local answer" eval 'iso run "$MODEL" -f "$TMP/prompt" -n 8 --temp 0 -q >"$TMP/want"'
if ! start_producer "$N" "$MODEL" --isa ref --threads 1 >"$TMP/log"; then  # slow: the transfer lasts
    t "producer" eval 'cat "$TMP/log"; false'
    finish
fi
run() {
    iso run "$MODEL" -f "$TMP/prompt" -n 8 --temp 0 --producer 127.0.0.1:"$PORT" --dir "$N/consumer" \
        --prefill "$1" >"$TMP/answer" 2>"$TMP/said"
}
carried() { sed -n 's/^ *lo: *\([0-9]*\) .*/\1/p' /proc/self/net/dev; }  # bytes so far
pages_come() { [ $(($(carried) - before)) -ge 300000 ]; }

# cut POLICY STATUS PATTERN: the link goes down when pages are coming. The consumer must end in time, with
# this status, saying this; the limit is 10 s of silence.
cut() {
    local rc=0 child since ms
    before=$(carried)
    run "$1" & child=$!
    await 300 0.1 pages_come
    kill -0 $child || { echo "it was over before the link went down"; cat "$TMP/said"; return 1; }
    link down; since=$(now_ms)
    wait $child || rc=$?
    ms=$(($(now_ms) - since))
    sleep 1.5  # the producer's own limit, before anything can reach it again
    link up
    cat "$TMP/said"; echo "status $rc, $ms ms after the link went down"
    [ $rc -eq "$2" ] && grep -Eq "$3" "$TMP/said" && [ $ms -ge 5000 ] && [ $ms -le 14000 ]
}
t "remote: fails within the limit, PEER_SILENT" cut remote 1 'node producer was silent for 10000 ms'
same_answer() { cmp "$TMP/want" "$TMP/answer"; }
t "auto: computes here after it" cut auto 0 'PEER_SILENT; computed here'
t "auto: the local answer" same_answer
t "the producer serves the next one" run remote
t "its answer is the local one" same_answer
# attempts ROLE: the reasons that a node's ledger has, in order.
attempts() {
    python3 - "$N/$1" "$1" <<'PY'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1] + "/ledger.sqlite")
print(*(r for (r,) in db.execute("SELECT reason FROM attempts WHERE role = ? ORDER BY id", (sys.argv[2],))))
PY
}
t "attempts of the consumer" test "$(attempts consumer)" = "PEER_SILENT PEER_SILENT OK"
t "attempts of the producer" test "$(attempts producer)" = "PEER_SILENT PEER_SILENT OK"
stop_producer; rc=$?
t "SIGTERM ends the producer" test $rc -eq 0
finish
