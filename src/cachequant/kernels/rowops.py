"""Vector code around the micro-kernels: largest magnitude, rounding to codes, widening, reading scales, finishing.

Each works element by element (or with an order-free maximum or integer sum), so vectors and tails give the same bits.
"""

from llvmlite import ir

from cachequant.kernels.ir import F32, I32, I64, constant, splat
from cachequant.kernels.micro import AHEAD, POINTER, counted, define, prefetch
from cachequant.kernels.simd import WIDTH, KernelSet

I8, I16 = ir.IntType(8), ir.IntType(16)
LANES = 8
ROUND, ROUND_BITS = 12582912.0, 0x4B400000  # 1.5 * 2^23: adding it rounds to an integer in the low bits, half to even
REPACK = 2.0**112  # float16 bits shifted into a float32 are 2^112 too small, denormals included


def entry(module, name, returns, takes):
    return define(module, name, ir.FunctionType(returns, takes), public=True)


def like(scalar, lanes):
    return ir.VectorType(scalar, lanes) if lanes > 1 else scalar


def read(builder, base, index, size, type_):
    """Load `type_` at element `index` of `size` bytes each."""
    place = builder.gep(base, [builder.mul(index, I64(size))])
    value = builder.load(builder.bitcast(place, type_.as_pointer()))
    value.align = 1
    return value


def write(builder, value, base, index, size):
    place = builder.bitcast(builder.gep(base, [builder.mul(index, I64(size))]), value.type.as_pointer())
    builder.store(value, place).align = 1


def vectors_then_rest(builder, count, carried, body):
    """`body(index, lanes, carried)` over whole vectors; returns the carried vectors and where the rest begins."""
    turns = builder.sdiv(count, I64(LANES))
    carried = counted(builder, turns, carried, lambda i, now: body(builder.mul(i, I64(LANES)), LANES, now))
    return carried, builder.mul(turns, I64(LANES))


def fold(builder, vector, combine):
    lanes = [builder.extract_element(vector, I32(i)) for i in range(vector.type.count)]
    while len(lanes) > 1:
        lanes = [combine(a, b) for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
    return lanes[0]


def largest(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """float (x, count): the largest magnitude; 0 if count is 0. Compared as integers, which order like magnitudes."""
    function, builder = entry(module, "largest", F32, [POINTER, I64])
    x, count = function.args

    def body(start, lanes):
        def step(index, now):
            value = read(builder, x, builder.add(start, index), 4, like(I32, lanes))
            return [bigger(builder.and_(value, constant(0x7FFFFFFF, value)), now[0])]

        return step

    def bigger(a, b):
        return builder.select(builder.icmp_signed(">", a, b), a, b)

    zero = ir.Constant(like(I32, LANES), [0] * LANES)
    (top,), done = vectors_then_rest(builder, count, [zero], lambda i, lanes, now: body(I64(0), lanes)(i, now))
    top = fold(builder, top, bigger)
    (top,) = counted(builder, builder.sub(count, done), [top], body(done, 1))
    builder.ret(builder.bitcast(top, F32))
    return function


def encode(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """i32 (x, count, inverse, codes): codes = clip(rint(x * inverse)); returns their sum.

    Codes are as wide as the set's inputs: int16 for groups of 2, int8 for groups of 4.
    """
    function, builder = entry(module, "encode", I32, [POINTER, I64, F32, POINTER])
    x, count, inverse, codes = function.args
    size = 4 // kernel_set.group

    def body(start, lanes):
        def step(index, now):
            at = builder.add(start, index)
            value = read(builder, x, at, 4, like(F32, lanes))
            scale = splat(builder, inverse, lanes) if lanes > 1 else inverse
            value = builder.fadd(builder.fmul(value, scale), constant(ROUND, value))
            code = builder.bitcast(value, like(I32, lanes))
            code = builder.sub(code, constant(ROUND_BITS, code))
            for limit, order in ((127, "<"), (-127, ">")):
                bound = constant(limit, code)
                code = builder.select(builder.icmp_signed(order, code, bound), code, bound)
            write(builder, builder.trunc(code, like(ir.IntType(8 * size), lanes)), codes, at, size)
            return [builder.add(now[0], code)]

        return step

    zero = ir.Constant(like(I32, LANES), [0] * LANES)
    (total,), done = vectors_then_rest(builder, count, [zero], lambda i, lanes, now: body(I64(0), lanes)(i, now))
    total = fold(builder, total, builder.add)
    (total,) = counted(builder, builder.sub(count, done), [total], body(done, 1))
    builder.ret(total)
    return function


def widen(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (codes, groups, floats): a panel's [group of k][16][group] codes as [k][16] float32."""
    function, builder = entry(module, "widen", ir.VoidType(), [POINTER, I64, POINTER])
    codes, groups, floats = function.args
    count, group = WIDTH * kernel_set.group, kernel_set.group

    def one(index, now):
        prefetch(builder, codes, builder.add(builder.mul(index, I64(count)), I64(AHEAD)))
        packed = read(builder, codes, index, count, ir.VectorType(I8, count))
        if kernel_set.unsigned:
            packed = builder.xor(packed, ir.Constant(packed.type, [-128] * count))
        for i in range(group):
            mask = ir.Constant(ir.VectorType(I32, WIDTH), list(range(i, count, group)))
            line = builder.sitofp(builder.shuffle_vector(packed, packed, mask), ir.VectorType(F32, WIDTH))
            write(builder, line, floats, builder.add(builder.mul(index, I64(group)), I64(i)), 4 * WIDTH)
        return now

    counted(builder, groups, [], one)
    builder.ret_void()
    return function


def steps_of_exponents(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (exponents, vectors, steps): vectors of 16 int8 exponents e as float32 2^e / 127; -127 stands for 0."""
    function, builder = define(
        module, "steps_of_exponents", ir.FunctionType(ir.VoidType(), [POINTER, I64, POINTER]), public=True
    )
    source, count, steps = function.args

    def one(index, now):
        exponent = read(builder, source, index, WIDTH, ir.VectorType(I8, WIDTH))
        exponent = builder.sext(exponent, ir.VectorType(I32, WIDTH))
        bits = builder.shl(builder.add(exponent, constant(127, exponent)), constant(23, exponent))
        power = builder.bitcast(bits, ir.VectorType(F32, WIDTH))
        write(builder, builder.fdiv(power, constant(127.0, power)), steps, index, 4 * WIDTH)
        return now

    counted(builder, count, [], one)
    builder.ret_void()
    return function


def steps_of_halves(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (halves, vectors, steps): vectors of 16 non-negative finite float16 as float32."""
    function, builder = define(
        module, "steps_of_halves", ir.FunctionType(ir.VoidType(), [POINTER, I64, POINTER]), public=True
    )
    source, count, steps = function.args

    def one(index, now):
        half = builder.zext(read(builder, source, index, 2 * WIDTH, ir.VectorType(I16, WIDTH)), like(I32, WIDTH))
        value = builder.bitcast(builder.shl(half, constant(13, half)), like(F32, WIDTH))
        write(builder, builder.fmul(value, constant(REPACK, value)), steps, index, 4 * WIDTH)
        return now

    counted(builder, count, [], one)
    builder.ret_void()
    return function


def finish(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (c, ldc, rows, bias, residual, ldr): c + bias, then + residual, over rows x 16; null leaves a term out."""
    arguments = [POINTER, I64, I64, POINTER, POINTER, I64]
    function, builder = entry(module, "finish", ir.VoidType(), arguments)
    c, ldc, rows, bias, residual, ldr = function.args
    line = like(F32, WIDTH)

    def each_row(other, stride):
        present = builder.icmp_unsigned("!=", builder.ptrtoint(other, I64), I64(0))
        with builder.if_then(present):

            def one(row, now):
                place = builder.gep(c, [builder.mul(row, ldc)])
                term = read(builder, builder.gep(other, [builder.mul(row, stride)]), I64(0), 4, line)
                write(builder, builder.fadd(read(builder, place, I64(0), 4, line), term), place, I64(0), 4)
                return now

            counted(builder, rows, [], one)

    each_row(bias, I64(0))
    each_row(residual, ldr)
    builder.ret_void()
    return function
