# SPDX-License-Identifier: MIT
"""flip_bits.py - flips random bits of a dump; `isobit diff` must name exactly what was flipped.

usage: flip_bits.py DIR MODEL IDS N ROUNDS COMMAND...
  DIR      written by `isobit digest MODEL IDS -n N --boundaries DIR`; a copy beside it is changed
  COMMAND  the program; "diff" and its arguments follow
CHECK_SEED chooses the bits; it is printed. Each round flips one bit, every fifth two, anywhere in the folder.
What a bit is comes from the names and sizes of the files and the specification's table of the page.
"""
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time

ORDER = ["attn_norm", "q", "k", "v", "gate", "q_rope", "k_rope", "attn_out", "attn_gated", "attn_o_proj",
         "ffn_inp", "ffn_norm", "ffn_act", "ffn_down", "l_out"]


def rank(tensor):
    """Place of a tensor in the graph."""
    if tensor in ("embd", "embd_norm"):
        return (-1, tensor)
    if tensor == "result_norm":
        return (1 << 30, 0)
    layer, name = tensor.split(".")
    return (int(layer), ORDER.index(name))


def ulp(a, b):
    """Distance of two patterns, None for a NaN."""
    x, y = (struct.unpack("<f", struct.pack("<I", u))[0] for u in (a, b))
    if math.isnan(x) or math.isnan(y):
        return None
    line = [(u & 0x7fffffff) * (-1 if u >> 31 else 1) for u in (a, b)]
    return abs(line[0] - line[1])


def tensor_bit(name, size, bit, n, data):
    """A flipped bit of a tensor as the ladder must tell it."""
    element, width = bit // 32, size // n // 4
    before = struct.unpack_from("<I", data, element * 4)[0]
    after = before ^ 1 << bit % 32
    return dict(tensor=name, position=element // width, element=element % width, a=f"0x{before:08x}",
                b=f"0x{after:08x}", ulp=ulp(before, after))


def page_bit(name, size, bit):
    """A flipped bit of a page."""
    layer, _, head, page = name.split(".")
    d, at = (size - 512) // 160, bit // 8
    where = dict(layer=int(layer), head=int(head[1:]), page=int(page[1:]))
    if at < 64 * d:
        region, slot, element = "k_hi", at // d, at % d
    elif at < 96 * d:
        at -= 64 * d
        region, slot, element = "k_lo", at // (d // 2), at % (d // 2) + (d // 2 if bit % 8 >= 4 else 0)
    elif at < 160 * d:
        at -= 96 * d
        region, slot, element = "v", at % 64, at // 64
    else:
        at -= 160 * d
        region, slot, element = "k_scale" if at < 256 else "v_scale", at % 256 // 4, 0
    return dict(where, region=region, position=where["page"] * 64 + slot, element=element)


def part(want, got):
    """The members of got that want has, in want's form."""
    got = dict(got, **{k: got[k]["bits"] for k in ("a", "b") if k in want}) if got else {}
    return {k: got.get(k) for k in want}


def check(status, out, tensors, pages):
    """What is wrong with the answer, or None. tensors, pages: the bits flipped."""
    if status != 1:
        return f"status {status}"
    j = json.loads(out)
    if j["equal"] or j["tensors"]["different"] != len({t["tensor"] for t in tensors}):
        return "tensors that differ"
    if j["pages"]["different"] != len({(p["layer"], p["head"], p["page"]) for p in pages}):
        return "pages that differ"
    first = j["tensors"]["first"]
    if tensors:
        want = min(tensors, key=lambda t: (rank(t["tensor"]), t["position"], t["element"]))
        if part(want, first) != want:
            return f"want {want}"
        positions = [t["position"] for t in tensors]
        spread = (len({t["tensor"] for t in tensors}) - 1, len(set(positions)), min(positions), max(positions))
        s = first["spread"]
        if (s["later_tensors"], s["positions"], s["first_position"], s["last_position"]) != spread:
            return f"want spread {spread}"
    elif first is not None:
        return "a tensor is named"
    if len(pages) == 1 and part(pages[0], j["pages"]["first"]) != pages[0]:
        return f"want {pages[0]}"
    return None


def main():
    folder, model, ids, n, rounds = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    seed = int(os.environ.get("CHECK_SEED", time.time_ns() % 2**32))
    print(f"CHECK_SEED={seed}")
    rng = random.Random(seed)
    copy = folder.with_name(folder.name + ".flipped")
    shutil.copytree(folder, copy)
    tensors = sorted(p.name for p in copy.iterdir() if p.suffix == ".f32")
    pages = sorted(p.name for p in copy.iterdir() if p.suffix == ".bin")
    failed = 0
    for r in range(rounds):
        # Every third round a page: they are few beside the tensors.
        files = rng.sample(pages if r % 3 == 2 else tensors, 1 if r % 5 else 2)
        flipped, saved = ([], []), {}
        for f in files:
            path = copy / f
            data = saved[path] = path.read_bytes()
            bit = rng.randrange(len(data) * 8)
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            if f.endswith(".f32"):
                flipped[0].append(tensor_bit(f[:-4], len(data), bit, n, data))
            else:
                flipped[1].append(page_bit(f[:-4], len(data), bit))
        p = subprocess.run(sys.argv[6:] + ["diff", folder, copy, model, ids, "-n", str(n), "--json"],
                           capture_output=True, text=True, timeout=120)
        why = check(p.returncode, p.stdout, *flipped)
        if why:
            failed += 1
            print(f"round {r}: {why}\n  flipped {flipped}\n{p.stdout}{p.stderr}")
        for path, data in saved.items():
            path.write_bytes(data)
    shutil.rmtree(copy)
    print(f"{rounds - failed} of {rounds} rounds")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
