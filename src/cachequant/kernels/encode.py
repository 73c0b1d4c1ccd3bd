"""From the exact rows of a full page to codes: centred, balanced and rotated, then a scale and codes a vector.

The scale of a vector is searched: each candidate gives codes, the least-squares scale of those codes, and its error;
the smallest error wins. Vectors stand side by side, [head_dim][32 tokens], so the arithmetic of a vector is one chain
over its values in order, and `kv.codec` says the same in NumPy.
"""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels.codebooks import CODED, FACTORS, edges, magnitudes
from cachequant.kernels.coded import FLOATS, PAGE, WORDS, half_bits, side_bytes, words
from cachequant.kernels.ir import I64, LANES, load, pointer, store
from cachequant.kernels.tiles import product
from cachequant.kernels.views import floats, keep

# the numbers that say how pages are coded: where the basis is, its strides in bytes, whether rows round when they are
# written, then three of each layer
BASIS, LAYER_STRIDE, HEAD_STRIDE, ROUNDED, PER_LAYER = range(5)
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


def _magnitude(builder, x):
    return builder.bitcast(builder.and_(builder.bitcast(x, WORDS), words(0x7FFFFFFF)), FLOATS)


@intrinsic(prefer_literal=True)
def _gains(typingctx, bits, u, d, inverse, num, den):
    """num = sum of |u| * level and den = sum of level^2 for the levels nearest to u * inverse, a vector a column.

    u (d, 32), inverse, num and den (32,) are addresses; `bits` is a literal.
    """
    levels, bounds = (tuple(float(x) for x in f(bits.literal_value)) for f in (magnitudes, edges))

    def codegen(context, builder, signature, args):
        _, u, d, inverse, num, den = args
        zero = ir.Constant(FLOATS, [0.0] * LANES)
        with cgutils.for_range_slice(builder, I64(0), I64(PAGE), I64(LANES)) as (column, _):
            by = load(builder, inverse, column, FLOATS)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(2)]
            with cgutils.for_range(builder, d) as loop:
                at = builder.add(builder.mul(loop.index, I64(PAGE)), column)
                x = _magnitude(builder, load(builder, u, at, FLOATS))
                y, b = builder.fmul(x, by), ir.Constant(FLOATS, [levels[0]] * LANES)
                for edge, level in zip(bounds, levels[1:], strict=True):
                    above = builder.fcmp_ordered(">", y, ir.Constant(FLOATS, [edge] * LANES))
                    b = builder.select(above, ir.Constant(FLOATS, [level] * LANES), b)
                for place, term in zip(sums, (builder.fmul(x, b), builder.fmul(b, b)), strict=True):
                    builder.store(builder.fadd(builder.load(place), term), place)
            for place, target in zip(sums, (num, den), strict=True):
                store(builder, builder.load(place), target, column)
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 5), codegen


@intrinsic(prefer_literal=True)
def _nearest(typingctx, bits, u, d, inverse, codes):
    """codes (d, 32) int32 of the levels nearest to u * inverse: which magnitude, and the sign as the bit above."""
    bounds, half = tuple(float(x) for x in edges(bits.literal_value)), 1 << (bits.literal_value - 1)

    def codegen(context, builder, signature, args):
        _, u, d, inverse, codes = args
        with cgutils.for_range_slice(builder, I64(0), builder.mul(d, I64(PAGE)), I64(LANES)) as (at, _):
            x = load(builder, u, at, FLOATS)
            y = builder.fmul(_magnitude(builder, x), load(builder, inverse, builder.urem(at, I64(PAGE)), FLOATS))
            negative = builder.fcmp_ordered("<", x, ir.Constant(FLOATS, [0.0] * LANES))
            code = builder.select(negative, words(half), words(0))
            for edge in bounds:
                above = builder.fcmp_ordered(">", y, ir.Constant(FLOATS, [edge] * LANES))
                code = builder.add(code, builder.zext(above, WORDS))
            store(builder, code, codes, at)
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 4), codegen


@njit(error_model="numpy", cache=True)
def _measure(bits, u, d, inverse, num, den):
    if bits == 4:
        _gains(4, u, d, inverse, num, den)
    elif bits == 3:
        _gains(3, u, d, inverse, num, den)
    else:
        _gains(2, u, d, inverse, num, den)


@njit(error_model="numpy", cache=True)
def _choose(bits, u, d, inverse, codes):
    if bits == 4:
        _nearest(4, u, d, inverse, codes)
    elif bits == 3:
        _nearest(3, u, d, inverse, codes)
    else:
        _nearest(2, u, d, inverse, codes)


@njit(error_model="numpy", cache=True)
def _search(bits, u, d, codes, scales):
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
    num, den, inverse = np.empty(PAGE, np.float32), np.empty(PAGE, np.float32), np.empty(PAGE, np.float32)
    best, chosen = np.full(PAGE, -1, np.float32), np.zeros(PAGE, np.float32)
    for f in range(len(_FACTORS)):
        for t in range(PAGE):
            inverse[t] = np.float32(1) / (rms[t] * _FACTORS[f]) if rms[t] > 0 else np.float32(0)
        _measure(bits, u.ctypes.data, d, inverse.ctypes.data, num.ctypes.data, den.ctypes.data)
        for t in range(PAGE):
            gain = num[t] * num[t] / den[t]
            if gain > best[t]:
                best[t], chosen[t], scales[t] = gain, inverse[t], num[t] / den[t] * top[t]
    _choose(bits, u.ctypes.data, d, chosen.ctypes.data, codes.ctypes.data)
    keep(chosen)


@njit(error_model="numpy", cache=True)
def _uniform(u, d, codes, scales):
    """Whole numbers up to 127 of the columns of u (d, 32)."""
    for t in range(PAGE):
        top = np.float32(0)
        for i in range(d):
            top = max(top, abs(u[i, t]))
        scales[t] = top / np.float32(127)
        scale = scales[t : t + 1].view(np.uint32)
        scale[0] = _rounded(scale[0])
        for i in range(d):
            y = np.rint(u[i, t] / scales[t]) if scales[t] > 0 else np.float32(0)
            codes[i, t] = np.int32(min(max(y, np.float32(-127)), np.float32(127)))


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
def encode_columns(bits, u, d, values, out):
    """Codes and scales of the 32 vectors in the columns of u (d, 32), which is overwritten, to an address.

    values : the codes are laid out as a page's values, [32][d], instead of its keys, [d][32].
    """
    codes, scales = np.empty((d, PAGE), np.int32), np.zeros(PAGE, np.float32)
    if bits < CODED:
        _search(bits, u, d, codes, scales)
    else:
        _uniform(u, d, codes, scales)
    _pack(bits, codes, PAGE if values else d, d if values else PAGE, values, out)
    _write_scales(scales, out + side_bytes(bits, d) - 2 * PAGE)


@njit(error_model="numpy", cache=True)
def _encode_side(bits, rows, values, d, means, matrix, out):
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
        product(4, 2, 1, 32, 0, x + 4 * t, matrix, d, y + 4 * t * d, d, d, d)
    for i in range(d):
        for t in range(PAGE):
            centred[i, t] = turned[t, i]
    encode_columns(bits, centred, d, values, out)


@njit(error_model="numpy", cache=True)
def encode_head(page, codes, layer, kv_heads, head, d, coding):
    """Code the keys and values of one head of a full page; `page` and `codes` are addresses."""
    k_bits, v_bits, offset = numbers_of(coding, layer)
    k_bytes, v_bytes = side_bytes(k_bits, d), side_bytes(v_bits, d)
    out = codes + offset + head * (k_bytes + v_bytes)
    rows = page + (layer * 2 * kv_heads + head) * d * PAGE * 4
    means, matrix, _ = basis_of(coding, layer, head, 0, d)
    _encode_side(k_bits, rows, False, d, means, matrix, out)
    means, matrix, _ = basis_of(coding, layer, head, 1, d)
    _encode_side(v_bits, rows + kv_heads * d * PAGE * 4, True, d, means, matrix, out + k_bytes)
