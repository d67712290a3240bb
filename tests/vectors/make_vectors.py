# SPDX-License-Identifier: MIT
"""make_vectors.py - test vectors for what the golden data do not reach, computed from the specification.

usage: make_vectors.py [--check]     writes tests/vectors/*.txt, or compares them with what it would write

Each case comes with the change that it must detect: the search for its inputs goes on until the value of the
specification and the value with that change differ. tools/mutation_check.py found the changes.
"""
import math
import pathlib
import random
import struct
import sys
from fractions import Fraction

import exact1 as x1
from exact1 import add, bits, f32, fma, g, mul, over, rcp

HERE = pathlib.Path(__file__).resolve().parent


class Out:
    """One file of cases."""

    def __init__(self, name, about):
        self.name, self.lines = name, ["# SPDX-License-Identifier: MIT", f"# {name} - {about}",
                                       "# Written by make_vectors.py; f32 numbers are bit patterns, see vectors.h."]

    def case(self, op, why, **values):
        self.lines.append(f"case {op} {why}")
        for key, v in values.items():
            if isinstance(v, str):
                self.lines.append(f"text {key} {v}")
                continue
            v = [v] if isinstance(v, (int, float)) else list(v)
            words = [bits(w) if isinstance(w, float) else w & 0xffffffff for w in v]
            self.lines.append(f"data {key} {len(words)}")
            hexes = [f"{w:x}" for w in words]
            self.lines += [" ".join(hexes[i:i + 12]) for i in range(0, len(hexes), 12)]
        self.lines.append("end")

    def text(self):
        return "\n".join(self.lines) + "\n"


def words64(u):
    return [u & 0xffffffff, u >> 32]


# --- matrix product ----------------------------------------------------------------------------------

def product(blocks, scales, n):
    """y before scale and bias: blocks yields (code sum terms) per 256 as a function of (p)."""
    y = 0.0
    for k in range((n + 255) // 256):
        y = fma(scales[k], blocks(k), y)
    return y


def f16_bits(v):
    return struct.unpack("<H", struct.pack("<e", v))[0]


def q4_1(rng):
    """Codes with a large sum, so that m * sum32 does not fit 24 bits: two roundings are seen."""
    n = 64
    while True:
        a = [rng.randint(1500, 2047) for _ in range(n)]
        w = [[rng.randint(0, 15) for _ in range(32)] for _ in range(n // 32)]
        d = [x1.f16(rng.randint(0x2c00, 0x2fff)) for _ in w]
        m = [x1.f16(rng.randint(0x3000, 0x33ff) | 0x8001) for _ in w]

        def chain(min_step):
            p = 0.0
            for j, codes in enumerate(w):
                part = a[32 * j:32 * j + 32]
                p = fma(d[j], float(sum(c * v for c, v in zip(codes, part))), p)
                p = min_step(m[j], float(sum(part)), p)
            return fma(0.75, p, 0.0)
        want = chain(fma)
        if want != chain(lambda b, c, p: add(p, mul(b, c))):
            break
    raw = b"".join(struct.pack("<HH", f16_bits(d[j]), f16_bits(m[j])) +
                   bytes(c[i] | c[i + 16] << 4 for i in range(16)) for j, c in enumerate(w))
    return dict(type="q4_1", weights=raw, code=a, scale=[0.75], want=[want])


def q8_0(rng):
    """A tensor with both a scale and a bias."""
    n = 32
    while True:
        a, w = [rng.randint(-2047, 2047) for _ in range(n)], [rng.randint(-127, 127) for _ in range(n)]
        d, s = x1.f16(rng.randint(0x2c00, 0x2fff)), f32(rng.randint(0x3a000000, 0x3affffff))
        scale, bias = f32(rng.randint(0x3f000000, 0x3fffffff)), f32(rng.randint(0x3f000000, 0x3fffffff))
        y = fma(s, fma(d, float(sum(c * v for c, v in zip(w, a))), 0.0), 0.0)
        want = add(mul(y, scale), bias)
        if want not in (fma(y, scale, bias), mul(add(y, bias), scale)):
            break
    raw = struct.pack("<H", f16_bits(d)) + bytes(c & 255 for c in w)
    return dict(type="q8_0", weights=raw, code=a, scale=[s], w_scale=scale, bias=bias, want=[want])


def float_floor(rng, least):
    """F32 blocks around the floor of 2^-26: below it a block is zeros."""
    n = 64
    a = [rng.randint(-2047, 2047) for _ in range(n)]
    top = 2.0 ** -26 if least else f32(bits(2.0 ** -26) - 1)
    w = [mul(top, f32(rng.randint(0x3e000000, 0x3f7fffff)) * rng.choice((-1, 1))) for _ in range(n)]
    w[5] = w[40] = top
    p = 0.0
    for j in range(0, n, 32):
        block, part = w[j:j + 32], a[j:j + 32]
        big = max(abs(v) for v in block)
        if big < 2.0 ** -26:
            continue
        inv = mul(rcp(big), 32767.0)
        codes = [max(-32767, min(32767, x1.ri(mul(v, inv)))) for v in block]
        p = fma(mul(big, over(1, 32767)), x1.rnd(sum(c * v for c, v in zip(codes, part))), p)
    want = fma(1.0, p, 0.0)
    assert (want != 0) == least
    return dict(type="f32", weights=struct.pack(f"<{n}f", *w), code=a, scale=[1.0], want=[want])


E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]


def units(byte):
    e, man = byte >> 3 & 15, byte & 7
    return 0 if byte & 127 == 127 else (8 + man) << (e - 1) if e else man


def nvfp4_row(rng):
    """Scale bytes with bit 7, which is ignored, also in front of 0x7f, which is zero. Returns bytes and codes."""
    raw, w = b"", []
    for block in ((0x91, 0x38, 0xff, 0xc4), (0xb9, 0x7f, 0x83, 0xf7)):
        q = bytes(rng.randint(0, 255) for _ in range(32))
        raw += bytes(block) + q
        for i, s in enumerate(block):
            w += [(E2M1[b & 15], units(s)) for b in q[8 * i:8 * i + 8]] + \
                 [(E2M1[b >> 4], units(s)) for b in q[8 * i:8 * i + 8]]
    return raw, w


def nvfp4(rng):
    raw, w = nvfp4_row(rng)
    a = [rng.randint(-2047, 2047) for _ in w]
    total = sum(code * sc * v for (code, sc), v in zip(w, a))
    want = fma(0.5, mul(x1.rnd(total), 2.0 ** -10), 0.0)
    return dict(type="nvfp4", weights=raw, code=a, scale=[0.5], want=[want])


def products(out, rng):
    for why, c in (("min not fused", q4_1(rng)), ("scale and bias contracted or swapped", q8_0(rng)),
                   ("floor of float weights: below", float_floor(rng, False)),
                   ("floor of float weights: at it", float_floor(rng, True)),
                   ("bit 7 of scales, 0x7f", nvfp4(rng))):
        c["weights"] = list(c["weights"])
        out.case("matmul", why, **c)


# --- rows -----------------------------------------------------------------------------------------------

def residual(out, weighted):
    """A row whose normed values fall below 2^-60 where x is zero: the guard removes them."""
    n = 64
    y = [2.0 ** -40 if i % 2 else 2.0 ** -64 for i in range(n)]
    y[9] = 256.0
    w = [f32(0x3f800001 + 77 * i) for i in range(n)]
    x = [0.0 if i % 3 else f32(0x3f000000 + i) for i in range(n)]
    k = x1.rms(y, 2.0 ** -17)
    normed = [mul(mul(v, k), u) if weighted else mul(v, k) for v, u in zip(y, w)]
    want = [add(a, g(b)) for a, b in zip(x, normed)]
    assert want != [add(a, b) for a, b in zip(x, normed)]
    more = dict(w=w) if weighted else {}
    out.case("residual_norm", "guard" + (" with weights" if weighted else ""), x=x, y=y, eps=2.0 ** -17, want=want, **more)


def quantize(out, rng):
    """Blocks whose maximum is 2^-28 and just below."""
    for why, top in (("floor: at it", 2.0 ** -28), ("floor: below", f32(bits(2.0 ** -28) - 1))):
        x = [mul(top, f32(rng.randint(0x3d000000, 0x3f7fffff)) * rng.choice((-1, 1))) for _ in range(256)]
        x[77] = -top
        code, scale = x1.codes(x, 2047)
        out.case("quantize", why, x=x, code=code, scale=scale,
                 sum32=[sum(code[i:i + 32]) for i in range(0, 256, 32)])


def embeddings(out, rng):
    raw, want = b"", []
    for e in (0, 1, 63, 64, 127):
        q = bytes(rng.randint(0, 255) for _ in range(16))
        raw += bytes([e]) + q
        d = 2.0 ** (e - 128) if e >= 64 else 0.0
        want += [g(mul(d, float(E2M1[b & 15]))) for b in q] + [g(mul(d, float(E2M1[b >> 4]))) for b in q]
    out.case("embed", "exponents below 64", type="mxfp4", row=list(raw), want=[v + 0.0 for v in want])
    raw, w = nvfp4_row(rng)
    out.case("embed", "bit 7 of scales, 0x7f", type="nvfp4", row=list(raw),
             want=[g(mul(float(c * s), 2.0 ** -10)) for c, s in w])


# --- heads ------------------------------------------------------------------------------------------------

PAIRS = {"none": 0, "interleaved": 1, "halves": 2}


def head(out, why, x, cos_sin=(), n_rot=0, pairs="none", norm=None, eps=1e-5):
    d, y = len(x), x
    more = {}
    if norm:
        k = x1.rms(x, eps)
        y = [g(mul(mul(v, k), w)) for v, w in zip(x, norm)]
        more = dict(norm=norm, eps=eps)
    if pairs != "none":
        y = x1.rotate(y, cos_sin, n_rot, pairs == "halves")
        more.update(cos_sin=cos_sin)
    tap = [g(v) for v in y]
    code, scale = x1.codes(x1.butterfly(tap), 2047)
    out.case("head", why, x=x, pairs=PAIRS[pairs], n_rot=n_rot, tap=tap, code=code, scale=scale, **more)
    return tap


def heads(out, rng):
    d = 16
    one = [0.0] * d
    one[3] = 2.0 ** -28
    head(out, "floor: at it", one)
    one = [0.0] * d
    one[3] = f32(bits(2.0 ** -28) - 1)
    head(out, "floor: below", one)
    # Values below 2^-60 beside ordinary ones, in the rotated part and beyond it.
    x = [rng.choice((1.0, -0.75)) if i % 4 == 0 else 2.0 ** -62 * rng.choice((1, -1.5)) for i in range(d)]
    x[4] = x[5] = x[12] = 2.0 ** -62
    angles = [v for i in range(d // 4) for v in x1.angle(rng.getrandbits(32))]
    for pairs in ("none", "interleaved", "halves"):
        tap = head(out, f"guard of what was not rotated and rotated, {pairs}", x, angles if pairs != "none" else (),
                   8 if pairs != "none" else 0, pairs)
        assert 0.0 in tap[:8] and 0.0 in tap[8:]
    head_norms(out, rng)


def head_norms(out, rng):
    """Mean and eps contracted (1/64 and 1/128 are powers of two: a product with them is exact, so d = 80); and a
    guard whose loss shows through the rotation that follows."""
    eps = f32(bits(1e-5))
    d = 80
    while True:
        x = [f32(rng.randint(0x3b000000, 0x3c7fffff)) * rng.choice((1, -1)) for _ in range(d)]
        s, inv = x1.sum_of_squares(x), over(1, d)
        if x1.rsqrt(fma(s, inv, eps)) != x1.rsqrt(add(mul(s, inv), eps)):
            break
    head(out, "mean and eps contracted", x, norm=[1.0] * d, eps=eps)
    d = 16
    while True:
        x = [f32(rng.randint(0x3f000000, 0x3fffffff)) * rng.choice((1, -1)) for _ in range(d)]
        norm = [1.0] * d
        norm[1] = 2.0 ** -62
        k = x1.rms(x, eps)
        a, b = mul(x[0], k), mul(mul(x[1], k), norm[1])
        c, s = 0.75, 0.625
        if fma(a, c, -mul(b, s)) != fma(a, c, 0.0):
            break
    head(out, "guard of the norm, seen through the rotation", x, [c, s] + [1.0, 0.0] * 7, d, "interleaved", norm, eps)


def values(out):
    """v: 2^-13 + half a unit of it + something below 2^-60, which only the guard keeps from rounding up."""
    d = 16
    x = [0.0] * d
    x[0], x[2], x[3] = 2.0 ** -13, 2.0 ** -37, 1.5 * 2.0 ** -61
    code, scale = x1.codes(x1.butterfly([g(v) for v in x]), 127)
    assert scale != x1.codes(x1.butterfly(x), 127)[1]
    out.case("value", "guard of v", x=x, code=code, scale=scale)
    for why, top in (("floor: at it", 2.0 ** -28), ("floor: below", f32(bits(2.0 ** -28) - 1))):
        x = [0.0] * d
        x[7] = -top
        code, scale = x1.codes(x1.butterfly(x), 127)
        out.case("value", why, x=x, code=code, scale=scale)


# --- attention ---------------------------------------------------------------------------------------------

def attend(out, why, q, q_scale, c, keys, first=0, cap=0.0, **more):
    d, last = len(q), len(keys) - 1
    want = x1.attention(q, q_scale, c, keys, first, last, cap)
    pages = b"".join(x1.page_bytes(keys[p:p + 64], d) for p in range(0, len(keys), 64))
    words = [int.from_bytes(pages[i:i + 4], "big") for i in range(0, len(pages), 4)]
    out.case("attention", why, q=q, q_scale=q_scale, c=c, cap=cap, inv_cap=over(1, cap) if cap else 0.0,
             first=first, last=last, pages=words, want=want, **more)
    return want


def softcap(out, rng):
    """A score soft-cap that bites (c is without log2 e then); and one whose product with log2 e shows its order."""
    d, c = 16, x1.rnd(Fraction(1, 4 * 16))

    def key():
        return ([rng.randint(-2047, 2047) for _ in range(d)], f32(rng.randint(0x3a800000, 0x3affffff)),
                [rng.randint(-127, 127) for _ in range(d)], f32(rng.randint(0x3c000000, 0x3cffffff)))
    q, keys = key()[0], [key() for _ in range(70)]
    q_scale, cap = f32(0x3b123457), 5.0
    assert attend(out, "score soft-cap", q, q_scale, c, keys, 3, cap) != x1.attention(q, q_scale, c, keys, 3, 69)

    def swapped(x):
        return mul(mul(cap, x1.LOG2E), x1.tanh(mul(x, over(1, cap))))

    def straight(x):
        return mul(mul(cap, x1.tanh(mul(x, over(1, cap)))), x1.LOG2E)
    while True:
        q, only = key()[0], key()
        s = mul(float(sum(a * b for a, b in zip(q, only[0]))), mul(mul(q_scale, c), only[1]))
        e = [x1.exp2(x1.sub(f(s), float(math.ceil(f(s))))) for f in (straight, swapped)]
        if x1.ri(mul(e[0], 65536.0)) != x1.ri(mul(e[1], 65536.0)):
            break
    attend(out, "score soft-cap: order of the products", q, q_scale, c, [only], 0, cap)


def segment_guard(out):
    """The first page has the weight and no values, the second tiny values 50 powers of two below: what the segment
    leaves is below 2^-60 and must be zero."""
    d = 16
    q, zero = [1] + [0] * (d - 1), [0] * d
    strong, weak = ([2000] + zero[1:], 1.0, zero, 0.0), ([1950] + zero[1:], 1.0, [64] + zero[1:], 2.0 ** -30)
    keys, part = [strong] * 64 + [weak] * 64, x1.State(d)
    for p in (0, 64):
        x1.attend_page(part, q, 1.0, keys[p:p + 64])
    assert any(0 < abs(v) < 2.0 ** -60 for v in part.o)
    attend(out, "guard at the end of a segment", q, 1.0, 1.0, keys, segment_m=part.m, segment_l=part.l,
           segment_o=[g(v) for v in part.o])


def finishes(out, rng):
    """A head whose reciprocal is not the rounded quotient (of all mantissas only 0x7fffff has that), and one that saw
    no key."""
    d, l = 16, 16777215.0
    assert mul(rcp(l), 65536.0) != over(65536, l)
    head = x1.State(d)
    head.l, head.empty, head.o = l, False, [f32(rng.randint(0x40000000, 0x47ffffff)) for _ in range(d)]
    out.case("finish", "reciprocal, not a division", l=l, empty=0, o=head.o, want=x1.finish(head))
    out.case("finish", "no key", l=0.0, empty=1, o=[0x7fc00000] * d, want=[0.0] * d)


# --- rotary tables, score scales, sampler ------------------------------------------------------------------

def hlog2_changed(x, step, product):
    """hlog2 with another step of its sum or another order of its product."""
    m, e = math.frexp(x)
    if m < 0.70710678118654752:
        m, e = m * 2.0, e - 1
    z = (m - 1.0) / (m + 1.0)
    s = 0.0
    for k in range(23, 0, -2):
        s = step(s, z * z, 1.0 / k)
    return e + product(z, s)


# Bases whose logarithm differs with a contracted sum (one in 40,000 whole numbers) or another order of the product.
CONTRACTED, REORDERED = (2835095.0, 3093869.0), (1969023.0, 4959939.0)


def discriminating_bases():
    for base in CONTRACTED:
        assert hlog2_changed(base, x1.fma64, lambda z, s: (z * s) * 2.8853900817779268) != x1.hlog2(base)
    for base in REORDERED:
        changed = hlog2_changed(base, lambda s, z2, c: s * z2 + c, lambda z, s: z * (s * 2.8853900817779268))
        assert changed != x1.hlog2(base)
    return CONTRACTED + REORDERED


def rope(out, rng):
    sizes = [(b, n) for b in (10000.0, 500000.0, 1.0) for n in (32, 80, 256)]
    sizes += [(b, 64) for b in (1000000.0, 9999.5, 150000.0)] + [(b, 32) for b in discriminating_bases()]
    for base, n_rot in sizes:
        u = [x1.turns(base, i, n_rot) for i in range(n_rot // 2)]
        out.case("turns", f"base {base:g}, {n_rot} dimensions",
                 base=words64(struct.unpack("<Q", struct.pack("<d", base))[0]), n_rot=n_rot, divisor=1.0,
                 want=[w for v in u for w in words64(v)])
    u = [x1.turns(500000.0, i, 64, 3.7000000476837158203125) for i in range(32)]
    out.case("turns", "a divisor", base=words64(struct.unpack("<Q", struct.pack("<d", 500000.0))[0]), n_rot=64,
             divisor=3.7000000476837158203125, want=[w for v in u for w in words64(v)])
    hs = [0, 1, 0xffffffff, 1 << 29, (1 << 29) - 1, 3 << 29, 0x60000001, 0xa0000000, 0xdfffffff]
    hs += [rng.getrandbits(32) for _ in range(400)]
    out.case("angles", "random ones, and both sides of the quadrants", h=hs, want=[v for h in hs for v in x1.angle(h)])


def scores(out):
    for d in range(16, 257, 16):
        b = d & -d
        out.case("score_scale", f"head size {d}", d=d, want=r64((1.0 / math.sqrt(d)) * 1.4426950408889634 / b),
                 capped=r64((1.0 / math.sqrt(d)) / b))


def r64(v):
    return x1.r(v)


def weight(l, top, c):
    z = max(mul(x1.sub(l, top), c), -125.0)
    return int(x1.exp2(z) * 2.0 ** 30)


def draw(seed, position, total):
    w = x1.philox([position & 0xffffffff, position >> 32, 0, 0], [seed & 0xffffffff, seed >> 32])
    return ((w[1] << 32 | w[0]) * total) >> 64


def temperature(out, rng):
    """Two tokens; min-p keeps the second exactly because of the last bit of c."""
    while True:
        t, l = f32(rng.randint(0x3f000000, 0x40400000)), -f32(rng.randint(0x3f000000, 0x40000000))
        c, other = mul(x1.LOG2E, rcp(t)), over(Fraction(x1.LOG2E), Fraction(t))
        w, v = weight(l, 0.0, c), weight(l, 0.0, other)
        p24 = w // 64
        if c != other and v < 64 * p24 and 0 < p24 < 1 << 24:
            break
    assert (w << 24) >= p24 << 30 > (v << 24)
    total = (1 << 30) + w
    picks = [int(draw(seed, 7, total) >= 1 << 30) for seed in range(32)]
    assert 1 in picks
    out.case("pick", "temperature by a reciprocal", logits=[0.0, l], temperature=t, min_p=p24 / 2.0 ** 24, top_p=1.0,
             position=7, seed=[w for s in range(32) for w in words64(s)], want=picks)


def penalties(out, rng):
    """Greedy: the penalised token is above its rival by one unit in the last place, or equal to it and loses."""
    for changed, why in ((lambda v, f, n, p: x1.sub(v, add(mul(f, n), p)), "penalties not fused"),
                         (lambda v, f, n, p: x1.sub(x1.sub(v, mul(f, n)), p), "penalties one by one")):
        while True:
            v, f, n, p = f32(rng.randint(0x41000000, 0x41200000)), f32(rng.randint(0x3d000000, 0x3dffffff)), 3.0, \
                f32(rng.randint(0x3d000000, 0x3dffffff))
            right, wrong = x1.sub(v, fma(f, n, p)), changed(v, f, n, p)
            if wrong < right:
                break
        out.case("pick", why, logits=[wrong, v], temperature=0.0, frequency=f, presence=p, top_p=1.0, min_p=0.0, seen=[1, 1, 1],
                 position=0, seed=[0, 0], want=[1])


def repetition(out, rng):
    """The same with the reciprocal of the repetition penalty, where a division gives one unit less."""
    while True:
        v, k = f32(rng.randint(0x41000000, 0x41200000)), f32(rng.randint(0x3f800001, 0x40000000))
        right, wrong = mul(v, rcp(k)), over(Fraction(v), Fraction(k))
        if wrong < right:
            break
    out.case("pick", "repetition by a reciprocal", logits=[wrong, v], temperature=0.0, repetition=k, top_p=1.0, min_p=0.0,
             seen=[1], position=0, seed=[0, 0], want=[1])


def share(out, rng):
    """top-p reaches the first token's weight but for a fraction of one: the second is kept."""
    while True:
        l = -f32(rng.randint(0x3f000000, 0x40000000))
        total = (1 << 30) + weight(l, 0.0, x1.LOG2E)
        p24 = -(-(1 << 54) // total)
        if 0 < p24 * total - (1 << 54) < 1 << 24 and p24 < 1 << 24:
            break
    picks = [int(draw(seed, 3, total) >= 1 << 30) for seed in range(32)]
    assert 1 in picks
    out.case("pick", "share of top-p rounded up", logits=[0.0, l], temperature=1.0, top_p=p24 / 2.0 ** 24, min_p=0.0, position=3,
             seed=[w for s in range(32) for w in words64(s)], want=picks)


def edge(out):
    """Tokens of weight 1 behind a heavy one: each draw there equals a running sum."""
    n = 4096
    l = -f32(bits(over(Fraction(59, 2), Fraction(x1.LOG2E))))
    assert weight(l, 0.0, mul(x1.LOG2E, rcp(1.0))) == 1
    total, seeds, want = (1 << 30) + n, [], []
    seed = 0
    while len(seeds) < 2:
        t = draw(seed, 11, total)
        if t >= 1 << 30:
            seeds.append(seed)
            want.append(t - (1 << 30) + 1)
        seed += 1
    out.case("pick", "a draw that equals a running sum", logits=[0.0], same=[n, bits(l)], temperature=1.0, top_p=1.0, min_p=0.0,
             position=11, seed=[w for s in seeds for w in words64(s)], want=want)


def make():
    rng = random.Random(20260801)
    kernels = Out("kernels.txt", "products, norms, codes, heads, embeddings and attention.")
    products(kernels, rng)
    residual(kernels, False)
    residual(kernels, True)
    quantize(kernels, rng)
    embeddings(kernels, rng)
    heads(kernels, rng)
    values(kernels)
    softcap(kernels, rng)
    segment_guard(kernels)
    finishes(kernels, rng)
    tables = Out("rope.txt", "turns per token, angles and score scales.")
    rope(tables, rng)
    scores(tables)
    sampler = Out("sampler.txt", "picks that depend on a last bit.")
    temperature(sampler, rng)
    penalties(sampler, rng)
    repetition(sampler, rng)
    share(sampler, rng)
    edge(sampler)
    return kernels, tables, sampler


def main():
    stale = 0
    for out in make():
        path = HERE / out.name
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text() != out.text():
                print(f"{path.name}: not what make_vectors.py writes")
                stale = 1
        else:
            path.write_text(out.text())
            print(f"{path.name}: {sum(line.startswith('case') for line in out.lines)} cases")
    return stale


if __name__ == "__main__":
    sys.exit(main())
