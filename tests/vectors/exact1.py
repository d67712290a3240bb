# SPDX-License-Identifier: MIT
"""exact1.py - parts of exact-1 in slow, exact Python, written from docs/exact-1.md alone.

A number is a Python float that f32 can hold. fma is computed in fractions and rounded once; + - * of two f32
numbers are computed in f64 and rounded, which is the same as rounding once (53 >= 2 * 24 + 2 bits).
"""
import math
import struct
from fractions import Fraction


def bits(x):
    """Bit pattern of an f32 number."""
    return struct.unpack("<I", struct.pack("<f", x))[0]


def f32(u):
    """The number of a bit pattern."""
    return struct.unpack("<f", struct.pack("<I", u & 0xffffffff))[0]


def rnd(x, mantissa=24, least=-149):
    """A fraction to the nearest number of so many bits, ties to even; as a float."""
    if x == 0:
        return 0.0
    sign, x = (-1 if x < 0 else 1), abs(Fraction(x))
    e = x.numerator.bit_length() - x.denominator.bit_length()
    if x < Fraction(2) ** e:
        e -= 1
    unit = Fraction(2) ** max(e - mantissa + 1, least)
    n, rest = divmod(x, unit)
    half = unit / 2
    n += rest > half or (rest == half and n % 2 == 1)
    return sign * float(n * unit)


def r(x):
    """An f64 value to f32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def add(a, b):
    return r(a + b)


def sub(a, b):
    return r(a - b)


def mul(a, b):
    return r(a * b)


def fma(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:  # the sign of an exact zero: that of an ordinary sum
        return a * b + c
    return rnd(exact)


def fma64(a, b, c):
    return rnd(Fraction(a) * Fraction(b) + Fraction(c), 53, -1074)


def g(x):
    return 0.0 if abs(x) < 2.0 ** -60 else x


def ri(x):
    """Nearest even integer."""
    return round(Fraction(x))


def over(a, b):
    """f32(a/b) of constants."""
    return rnd(Fraction(a) / Fraction(b))


def rcp(x):
    y = f32(0x7EF311C3 - bits(x))
    for _ in range(4):
        e = fma(-x, y, 1.0)
        y = fma(y, e, y)
    return y


def rsqrt(x):
    y, h = f32(0x5F375A86 - (bits(x) >> 1)), mul(0.5, x)
    for _ in range(4):
        t = mul(h, y)
        y = mul(y, fma(-t, y, 1.5))
    return y


EXP2 = [float.fromhex(c) for c in ("0x1p+0", "0x1.62e43p-1", "0x1.ebfbdcp-3", "0x1.c6aee8p-5", "0x1.3b2d4cp-7",
                                   "0x1.5f3e54p-10", "0x1.41fbbap-13")]
LOG2E = float.fromhex("0x1.715476p+0")


def exp2(x):
    if x < -125:
        return 0.0
    n = ri(x)
    f, p = sub(x, float(n)), EXP2[6]
    for c in EXP2[5::-1]:
        p = fma(p, f, c)
    return f32(bits(p) + (n << 23))


def tanh(x):
    t = exp2(-mul(abs(x), 2 * LOG2E))
    y = mul(sub(1.0, t), rcp(add(1.0, t)))
    return math.copysign(y, x)


def pow2(k):
    return 2.0 ** k if k >= -60 else 0.0


def f16(h):
    return struct.unpack("<e", struct.pack("<H", h))[0]


def sum_of_squares(x):
    lanes = [0.0] * 256
    for i, v in enumerate(x):
        lanes[i % 256] = fma(v, v, lanes[i % 256])
    s = 128
    while s:
        lanes = [add(lanes[i], lanes[i + s]) for i in range(s)]
        s //= 2
    return lanes[0]


def rms(x, eps):
    return rsqrt(add(mul(sum_of_squares(x), over(1, len(x))), eps))


def butterfly_block(d):
    return d & -d


def butterfly(x):
    x, b, s = list(x), butterfly_block(len(x)), 1
    while s < b:
        for i in range(len(x)):
            if not i & s:
                x[i], x[i + s] = add(x[i], x[i + s]), sub(x[i], x[i + s])
        s *= 2
    return x


def codes(x, limit):
    """Codes and scale of one block or head."""
    m = max(abs(v) for v in x)
    if m < 2.0 ** -28:
        return [0] * len(x), 0.0
    inv = mul(rcp(m), float(limit))
    return [max(-limit, min(limit, ri(mul(v, inv)))) for v in x], mul(m, over(1, limit))


def rotate(x, cos_sin, n_rot, halves):
    y = list(x)
    for i in range(n_rot // 2):
        a, b = (i, i + n_rot // 2) if halves else (2 * i, 2 * i + 1)
        c, s = cos_sin[2 * i], cos_sin[2 * i + 1]
        y[a], y[b] = fma(x[a], c, -mul(x[b], s)), fma(x[a], s, mul(x[b], c))
    return [g(v) for v in y]


class State:
    """(M, l, o) of section 10."""

    def __init__(self, d):
        self.empty, self.m, self.l, self.o = True, 0.0, 0.0, [0.0] * d

    def merge(self, m, l, o, unit):
        if self.empty:
            self.empty, self.m, self.l, self.o = False, m, l, [mul(v, unit) for v in o]
            return
        n = max(self.m, m)
        a, b = pow2(self.m - n), pow2(m - n)
        self.l = fma(l, b, mul(self.l, a))
        self.o = [fma(v, mul(b, unit), g(mul(w, a))) for v, w in zip(o, self.o)]
        self.m = n


def attend_page(state, q, qs, keys, cap=0.0):
    """keys: (k codes, k scale, v codes, v scale) of the visible ones."""
    scores = []
    for k, k_scale, _, _ in keys:
        s = mul(float(rnd(sum(a * b for a, b in zip(q, k)))), mul(qs, k_scale))
        if cap:
            s = mul(mul(cap, tanh(mul(s, over(1, cap)))), LOG2E)
        scores.append(s)
    top = float(math.ceil(max(scores)))
    weights = [exp2(sub(s, top)) for s in scores]
    v_top = max(v for _, _, _, v in keys)
    e = math.frexp(v_top)[1] if v_top else 14
    p = [ri(mul(mul(w, key[3]), 2.0 ** (14 - e))) for w, key in zip(weights, keys)]
    l = sum(ri(mul(w, 65536.0)) for w in weights)
    o = [rnd(sum(pj * key[2][i] for pj, key in zip(p, keys))) for i in range(len(q))]
    state.merge(top, rnd(l), o, 2.0 ** (e - 14))


def attention(q, q_scale, c, keys, first, last, cap=0.0):
    """One query head over keys by position; visible are first .. last."""
    d, head = len(q), State(len(q))
    qs = mul(q_scale, c)
    for segment in range(first // 512, last // 512 + 1):
        part = State(d)
        for page in range(segment * 8, segment * 8 + 8):
            seen = [keys[p] for p in range(max(first, page * 64), min(last, page * 64 + 63) + 1)]
            if seen:
                attend_page(part, q, qs, seen, cap)
        if not part.empty:
            head.merge(part.m, part.l, [g(v) for v in part.o], 1.0)
    return finish(head)


def finish(head):
    d = len(head.o)
    if head.empty:
        return [0.0] * d
    k = mul(rcp(head.l), 65536.0)
    out = butterfly([g(mul(v, k)) for v in head.o])
    return [g(mul(v, over(1, butterfly_block(d)))) for v in out]


def page_bytes(slots, d):
    """A page from (k codes, k scale, v codes, v scale) per slot."""
    slots = slots + [([0] * d, 0.0, [0] * d, 0.0)] * (64 - len(slots))
    out = bytearray()
    for k, _, _, _ in slots:
        out += bytes((c >> 4) & 255 for c in k)
    for k, _, _, _ in slots:
        out += bytes((k[i] & 15) | (k[i + d // 2] & 15) << 4 for i in range(d // 2))
    for i in range(d):
        out += bytes(v[i] & 255 for _, _, v, _ in slots)
    for at in (1, 3):
        out += b"".join(struct.pack("<f", s[at]) for s in slots)
    return bytes(out)


def hlog2(x):
    m, e = math.frexp(x)
    if m < 0.70710678118654752:
        m, e = m * 2.0, e - 1
    z = (m - 1.0) / (m + 1.0)
    z2, s = z * z, 0.0
    for k in range(23, 0, -2):
        s = s * z2 + 1.0 / k
    return e + (z * s) * 2.8853900817779268


def hexp2(x):
    n = float(ri(x))
    f, s = (x - n) * 0.69314718055994531, 1.0
    for k in range(16, 0, -1):
        s = 1.0 + (f * s) / k
    return math.ldexp(s, int(n))


def turns(base, i, n_rot, divisor=1.0):
    f = hexp2(-(hlog2(base) * (2.0 * i / n_rot)))
    if divisor != 1.0:
        f = f / divisor
    return int(f * float(2935890503282001226))


def angle(h):
    """cos and sin of h / 2^32 turns."""
    q = ((h + (1 << 29)) & 0xffffffff) >> 30
    rest = (h - (q << 30)) & 0xffffffff
    t = (rest - (1 << 32) if rest >> 31 else rest) * 1.4629180792671596e-9
    t2, s, c = t * t, 1.0, 1.0
    for k in range(15, 2, -2):
        s = 1.0 - (t2 * s) / (k * (k - 1))
    s = t * s
    for k in range(16, 1, -2):
        c = 1.0 - (t2 * c) / (k * (k - 1))
    cos, sin = [(c, s), (-s, c), (-c, -s), (s, -c)][q & 3]
    return r(cos), r(sin)


def philox(counter, key):
    c, k, mask = list(counter), list(key), 0xffffffff
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & mask, (p0 >> 32) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c
