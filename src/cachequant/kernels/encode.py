"""From the exact rows of a full page to codes: centred and turned, then a scale and codes a vector.

The scale of a vector is searched: each candidate gives codes, the least-squares scale of those codes, and its error;
the smallest error wins. With feedback the error of each value is handed on to those after it. Vectors stand side by
side, [head_dim][32 tokens], so the arithmetic of a vector is one chain over its values in order, and `kv.codec` says
the same in NumPy.
"""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels.codebooks import CODED, FACTORS, edges, magnitudes
from cachequant.kernels.coded import FLOATS, PAGE, WORDS, side_bytes
from cachequant.kernels.ir import F32, I64, LANES, constant, half_bits, load, pointer, splat, store
from cachequant.kernels.slab import side_at
from cachequant.kernels.tiles import product
from cachequant.kernels.views import floats, keep

# the numbers that say how pages are coded: where the basis is, its strides in bytes, whether rows round when they are
# written, where the feedback is (0: there is none), then three of each layer
BASIS, LAYER_STRIDE, HEAD_STRIDE, ROUNDED, FEEDBACK, PER_LAYER = range(6)
K_BITS, V_BITS, OFFSET = range(3)
_FACTORS = np.array(FACTORS, np.float32)


@njit(inline="always")
def numbers_of(coding, layer):
    """(bits of keys, bits of values, offset of the layer in a page)."""
    at = PER_LAYER + 3 * layer
    return coding[at + K_BITS], coding[at + V_BITS], coding[at + OFFSET]


@njit(inline="always")
def basis_of(coding, layer, head, side, d):
    """Address of the means (d,), of the matrix into the coded basis (d, d) and of the one out of it, (d, d) again."""
    means = coding[BASIS] + layer * coding[LAYER_STRIDE] + head * coding[HEAD_STRIDE] + 4 * side * d * (1 + 2 * d)
    return means, means + 4 * d, means + 4 * d * (1 + d)


@njit(inline="always")
def _feedback_of(coding, layer, kv_heads, head, side, d):
    """Address of one triangle, 0 where nothing is fed back."""
    size = 4 * (d * (d - 1) // 2)
    return coding[FEEDBACK] + ((layer * kv_heads + head) * 2 + side) * size if coding[FEEDBACK] else np.int64(0)


def _magnitude(builder, x):
    bits = builder.bitcast(x, WORDS)
    return builder.bitcast(builder.and_(bits, constant(0x7FFFFFFF, bits)), FLOATS)


def _emit_fed(builder, i, feedback, source, fed):
    """Feed to the 32 values of row `i`, kept in `fed`, what the triangle says of the rows of `source` before it."""
    row = builder.udiv(builder.mul(i, builder.sub(i, I64(1))), I64(2))
    fed_back = builder.icmp_signed("!=", feedback, I64(0))
    with cgutils.for_range(builder, builder.select(fed_back, i, I64(0))) as before:
        factor = splat(builder, load(builder, feedback, builder.add(row, before.index), F32), LANES)
        for g, total in enumerate(fed):
            place = builder.add(builder.mul(before.index, I64(PAGE)), I64(g * LANES))
            term = builder.fmul(factor, load(builder, source, place, FLOATS))
            builder.store(builder.fadd(builder.load(total), term), total)


@intrinsic
def _feed(typingctx, u, d, feedback, out):
    """out (d, 32) = u with what stands before each value fed to it; all are addresses, feedback may be 0."""

    def codegen(context, builder, signature, args):
        u, d, feedback, out = args
        fed = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, [0.0] * LANES)) for _ in range(PAGE // LANES)]
        with cgutils.for_range(builder, d) as loop:
            at = [builder.add(builder.mul(loop.index, I64(PAGE)), I64(g * LANES)) for g in range(len(fed))]
            for total, place in zip(fed, at, strict=True):
                builder.store(load(builder, u, place, FLOATS), total)
            _emit_fed(builder, loop.index, feedback, u, fed)
            for total, place in zip(fed, at, strict=True):
                store(builder, builder.load(total), out, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic(prefer_literal=True)
def _nearest(typingctx, bits, u, whole, d, inverse, feedback, errors, codes, num, den):
    """Codes (d, 32) int32 of the columns of u * inverse: which magnitude, and the sign as the bit above it.

    Each value is rounded to the nearest level after the errors of those before it were fed to it. num = sum of whole *
    (what the levels c come to, fed in the same way), den = sum of the square of that: the least-squares scale is
    num / den. u, whole = u fed with itself, errors (d, 32), inverse, num and den (32,), and feedback are addresses; the
    last is 0 where nothing is fed back. `bits` is a literal.
    """
    levels, bounds = (tuple(float(x) for x in f(bits.literal_value)) for f in (magnitudes, edges))
    half, groups = 1 << (bits.literal_value - 1), range(PAGE // LANES)

    def codegen(context, builder, signature, args):
        _, u, whole, d, inverse, feedback, errors, codes, num, den = args
        zero = ir.Constant(FLOATS, [0.0] * LANES)
        by = [load(builder, inverse, I64(g * LANES), FLOATS) for g in groups]
        sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(2)] for _ in groups]
        fed = [cgutils.alloca_once_value(builder, zero) for _ in groups]
        with cgutils.for_range(builder, d) as loop:
            i = loop.index
            at = [builder.add(builder.mul(i, I64(PAGE)), I64(g * LANES)) for g in groups]
            scaled = [builder.fmul(load(builder, u, at[g], FLOATS), by[g]) for g in groups]
            for g in groups:
                builder.store(scaled[g], fed[g])
            _emit_fed(builder, i, feedback, errors, fed)
            for g in groups:
                x = builder.load(fed[g])
                y, level, index = _magnitude(builder, x), constant(levels[0], x), ir.Constant(WORDS, [0] * LANES)
                for edge, more in zip(bounds, levels[1:], strict=True):
                    above = builder.fcmp_ordered(">", y, ir.Constant(FLOATS, [edge] * LANES))
                    level = builder.select(above, ir.Constant(FLOATS, [more] * LANES), level)
                    index = builder.add(index, builder.zext(above, WORDS))
                negative = builder.fcmp_ordered("<", x, zero)
                level = builder.select(negative, builder.fneg(level), level)
                sign = builder.select(negative, constant(half, index), constant(0, index))
                store(builder, builder.add(index, sign), codes, at[g])
                store(builder, builder.fsub(scaled[g], level), errors, at[g])
                aim = load(builder, whole, at[g], FLOATS)
                got = builder.fsub(builder.fmul(aim, by[g]), builder.fsub(x, level))
                for place, term in zip(sums[g], (builder.fmul(aim, got), builder.fmul(got, got)), strict=True):
                    builder.store(builder.fadd(builder.load(place), term), place)
        for g in groups:
            for place, target in zip(sums[g], (num, den), strict=True):
                store(builder, builder.load(place), target, I64(g * LANES))
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 9), codegen


@njit(error_model="numpy", cache=True)
def _try(bits, u, whole, d, inverse, feedback, errors, codes, num, den):
    if bits == 4:
        _nearest(4, u, whole, d, inverse, feedback, errors, codes, num, den)
    elif bits == 3:
        _nearest(3, u, whole, d, inverse, feedback, errors, codes, num, den)
    else:
        _nearest(2, u, whole, d, inverse, feedback, errors, codes, num, den)


@njit(error_model="numpy", cache=True)
def _search(bits, u, d, feedback, codes, scales):
    """Codes (magnitude, then sign as the bit above it) and scales of the columns of u (d, 32), which is overwritten."""
    top, rms = np.zeros(PAGE, np.float32), np.zeros(PAGE, np.float32)
    for i in range(d):
        for t in range(PAGE):
            top[t] = max(top[t], abs(u[i, t]))
    for i in range(d):
        for t in range(PAGE):
            u[i, t] = u[i, t] / top[t] if top[t] > 0 else np.float32(0)
            rms[t] += u[i, t] * u[i, t]
    for t in range(PAGE):
        rms[t] = np.sqrt(rms[t] / np.float32(d))
    whole, errors = np.empty((d, PAGE), np.float32), np.empty((d, PAGE), np.float32)
    _feed(u.ctypes.data, d, feedback, whole.ctypes.data)
    num, den, inverse = np.empty(PAGE, np.float32), np.empty(PAGE, np.float32), np.empty(PAGE, np.float32)
    best, chosen = np.full(PAGE, -1, np.float32), np.zeros(PAGE, np.float32)
    for f in range(len(_FACTORS) + 1):
        for t in range(PAGE):
            if f == len(_FACTORS):
                inverse[t] = chosen[t]
            else:
                inverse[t] = np.float32(1) / (rms[t] * _FACTORS[f]) if rms[t] > 0 else np.float32(0)
        _try(
            bits, u.ctypes.data, whole.ctypes.data, d, inverse.ctypes.data, feedback, errors.ctypes.data,
            codes.ctypes.data, num.ctypes.data, den.ctypes.data,
        )  # fmt: skip
        for t in range(PAGE):
            gain = num[t] * num[t] / den[t]
            if gain > best[t]:
                best[t], chosen[t], scales[t] = gain, inverse[t], num[t] / den[t] * top[t]
    keep(whole)
    keep(errors)


@njit(error_model="numpy", cache=True)
def _uniform(u, d, feedback, codes, scales):
    """Whole numbers up to 127 of the columns of u (d, 32)."""
    errors, fed = np.empty((d, PAGE), np.float32), np.empty(PAGE, np.float32)
    factors, at = floats(feedback, d * (d - 1) // 2 if feedback else 0), 0
    for t in range(PAGE):
        top = np.float32(0)
        for i in range(d):
            top = max(top, abs(u[i, t]))
        scales[t] = top / np.float32(127)
        scale = scales[t : t + 1].view(np.uint32)
        scale[0] = _rounded(scale[0])
    for i in range(d):
        for t in range(PAGE):
            fed[t] = errors[i, t] = u[i, t] / scales[t] if scales[t] > 0 else np.float32(0)
        if feedback:
            for j in range(i):
                for t in range(PAGE):
                    fed[t] += factors[at] * errors[j, t]
                at += 1
        for t in range(PAGE):
            code = min(max(np.rint(fed[t]), np.float32(-127)), np.float32(127))
            errors[i, t] -= code
            codes[i, t] = np.int32(code)


@njit(inline="always")
def _rounded(bits):
    """The bits of a float32 rounded to bfloat16, to nearest, ties to even; the lower half is zero."""
    return np.uint32((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000))


@njit(error_model="numpy", cache=True)
def _pack(bits, codes, k, n, transposed, out):
    """Codes [k][n] (or [n][k], transposed) into words."""
    count = 16 if bits < 4 else 32 // bits
    width = 2 if bits < 4 else bits
    mask = np.uint32((1 << width) - 1)
    words = carray(pointer(out), (k // count, n), np.uint32)
    planes = carray(pointer(out + 4 * (k // count) * n), (-(-k // 32), n), np.uint32)
    words[:] = 0
    if bits == 3:
        planes[:] = 0
    for i in range(k):
        for j in range(n):
            code = codes[j, i] if transposed else codes[i, j]
            words[i // count, j] |= (np.uint32(code) & mask) << np.uint32(width * (i % count))
            if bits == 3:
                planes[i // 32, j] |= np.uint32(code >> 2) << np.uint32(i % 32)


@njit(error_model="numpy", cache=True)
def _write_scales(scales, out):
    bits, target = scales.view(np.uint32), carray(pointer(out), (PAGE,), np.uint16)
    for t in range(PAGE):
        target[t] = np.uint16(_rounded(bits[t]) >> np.uint32(16))


@njit(error_model="numpy", cache=True)
def encode_columns(bits, u, d, feedback, values, out):
    """Codes and scales of the 32 vectors in the columns of u (d, 32), which is overwritten, to an address.

    feedback : address of the triangle of `kv.basis.Basis`, 0 for none.
    values : the codes are laid out as a page's values, [32][d], instead of its keys, [d][32].
    """
    codes, scales = np.empty((d, PAGE), np.int32), np.zeros(PAGE, np.float32)
    if bits < CODED:
        _search(bits, u, d, feedback, codes, scales)
    else:
        _uniform(u, d, feedback, codes, scales)
    _pack(bits, codes, PAGE if values else d, d if values else PAGE, values, out)
    _write_scales(scales, out + side_bytes(bits, d) - 2 * PAGE)


@njit(error_model="numpy", cache=True)
def _encode_side(bits, rows, values, d, means, matrix, feedback, out):
    """One side of a page: `rows` is the address of keys [d][32] or of values [32][d]."""
    if bits >= 16:
        count = PAGE * d
        source = floats(rows, count)
        if bits == 32:
            floats(out, count)[:] = source
        else:
            halves = carray(pointer(out), (count,), np.uint16)
            for i in range(count):
                halves[i] = half_bits(source[i])
        return
    centred, turned = np.empty((d, PAGE), np.float32), np.empty((PAGE, d), np.float32)
    source, mean = floats(rows, d * PAGE), floats(means, d)
    for i in range(d):
        for t in range(PAGE):
            centred[i, t] = source[t * d + i if values else i * PAGE + t] - mean[i]
    x, y = np.int64(centred.ctypes.data), np.int64(turned.ctypes.data)
    for t in range(0, PAGE, 4):
        product(4, 2, LANES, 1, 32, 0, x + 4 * t, matrix, d, y + 4 * t * d, d, d, d, 0)
    for i in range(d):
        for t in range(PAGE):
            centred[i, t] = turned[t, i]
    encode_columns(bits, centred, d, feedback, values, out)


@njit(error_model="numpy", cache=True)
def encode_head(page, codes, layer, kv_heads, head, d, coding):
    """Code the keys and values of one head of a full page; `page` and `codes` are known as `kernels.slab` says."""
    k_bits, v_bits, offset = numbers_of(coding, layer)
    size, bits = d * PAGE * 4, (k_bits, v_bits)
    at = offset + head * (side_bytes(k_bits, d) + side_bytes(v_bits, d))
    for side in range(2):
        means, matrix, _ = basis_of(coding, layer, head, side, d)
        feedback = _feedback_of(coding, layer, kv_heads, head, side, d)
        rows = side_at(page, ((2 * layer + side) * kv_heads + head) * size, size)
        out = side_at(codes, at, side_bytes(bits[side], d))
        _encode_side(bits[side], rows, side == 1, d, means, matrix, feedback, out)
        at += side_bytes(bits[side], d)
