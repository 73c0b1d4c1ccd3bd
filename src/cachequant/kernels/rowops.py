"""Vector code around the micro-kernels: largest magnitude, rounding to codes, widening, reading scales, finishing.

Each works element by element (or with an order-free maximum or integer sum), so vectors and tails give the same bits.
"""

from llvmlite import ir

from cachequant.kernels.ir import F32, I32, I64, POINTER, constant, emit_prefetch, splat
from cachequant.kernels.micro import AHEAD, counted, define
from cachequant.kernels.simd import WIDTH, KernelSet

I8, I16 = ir.IntType(8), ir.IntType(16)
LANES = 16  # two vectors of AVX2 a turn
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


def fold(builder, vector, combine):
    """All lanes combined into one, by halves; the order must not matter."""
    while vector.type.count > 1:
        lanes = vector.type.count // 2
        low, high = (
            builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, lanes), list(range(i, i + lanes))))
            for i in (0, lanes)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, I32(0))


def each_block(builder, count, block, body):
    """`body(index, start, size)` over blocks of `count` values; the last one may be shorter."""

    def one(index, now):
        start = builder.mul(index, block)
        left = builder.sub(count, start)
        body(index, start, builder.select(builder.icmp_signed("<", left, block), left, block))
        return now

    counted(builder, builder.sdiv(builder.add(count, builder.sub(block, I64(1))), block), [], one)


def reduce_block(builder, start, size, body, combine):
    """Fold int32 `body(place, lanes)` over `size` values from `start`: whole vectors, then the rest one by one."""

    def over(first, lanes):
        def step(index, now):
            place = builder.add(first, builder.mul(index, I64(lanes)))
            return [combine(now[0], body(place, lanes))]

        return step

    turns = builder.sdiv(size, I64(LANES))
    (total,) = counted(builder, turns, [ir.Constant(like(I32, LANES), [0] * LANES)], over(start, LANES))
    done = builder.mul(turns, I64(LANES))
    rest = over(builder.add(start, done), 1)
    (total,) = counted(builder, builder.sub(size, done), [fold(builder, total, combine)], rest)
    return total


def largest(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (x, count, block, tops): largest magnitude of every block, compared as integers, which order alike."""
    function, builder = entry(module, "largest", ir.VoidType(), [POINTER, I64, I64, POINTER])
    x, count, block, tops = function.args

    def magnitude(place, lanes):
        value = read(builder, x, place, 4, like(I32, lanes))
        return builder.and_(value, constant(0x7FFFFFFF, value))

    def bigger(a, b):
        return builder.select(builder.icmp_signed(">", a, b), a, b)

    def one(index, start, size):
        write(builder, reduce_block(builder, start, size, magnitude, bigger), tops, index, 4)

    each_block(builder, count, block, one)
    builder.ret_void()
    return function


def encode(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (x, count, block, most, inverses, codes, sums): codes = rint(x * inverse of the block).

    Clipped to [-most, most]. Codes are as wide as the set's inputs: int16 for groups of 2, int8 for groups of 4. Their
    sums are kept for unsigned sets only, which need them.
    """
    takes = [POINTER, I64, I64, I64, POINTER, POINTER, POINTER]
    function, builder = entry(module, "encode", ir.VoidType(), takes)
    x, count, block, most, inverses, codes, sums = function.args
    size_of_code = 4 // kernel_set.group
    highest = builder.trunc(most, I32)
    bounds = {LANES: splat(builder, highest, LANES), 1: highest}

    def one(index, start, size):
        inverse = read(builder, inverses, index, 4, F32)

        def code_of(place, lanes):
            value = read(builder, x, place, 4, like(F32, lanes))
            scale = splat(builder, inverse, lanes) if lanes > 1 else inverse
            value = builder.fadd(builder.fmul(value, scale), constant(ROUND, value))
            code = builder.bitcast(value, like(I32, lanes))
            code = builder.sub(code, constant(ROUND_BITS, code))
            for bound, order in ((bounds[lanes], "<"), (builder.neg(bounds[lanes]), ">")):
                code = builder.select(builder.icmp_signed(order, code, bound), code, bound)
            narrow = builder.trunc(code, like(ir.IntType(8 * size_of_code), lanes))
            write(builder, narrow, codes, place, size_of_code)
            return code

        if kernel_set.unsigned:
            write(builder, reduce_block(builder, start, size, code_of, builder.add), sums, index, 4)
        else:
            reduce_block(builder, start, size, code_of, lambda now, code: now)

    each_block(builder, count, block, one)
    builder.ret_void()
    return function


def interleave(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (lines, rows, count, units): units[j * rows + r] = lines[r * count + j]: int32, or the bits of float32."""
    function, builder = entry(module, "interleave", ir.VoidType(), [POINTER, I64, I64, POINTER])
    lines, rows, count, units = function.args

    def move(side):
        def block(first_row, first):
            kind = like(I32, side)
            place = [builder.add(builder.mul(builder.add(first_row, I64(i)), count), first) for i in range(side)]
            block = [read(builder, lines, p, 4, kind) for p in place]
            for i, column in enumerate(transposed(builder, block) if side > 1 else block):
                target = builder.add(builder.mul(builder.add(first, I64(i)), rows), first_row)
                write(builder, column, units, target, 4)

        return block

    def each(first, end, side, body):
        def one(index, now):
            body(builder.add(first, builder.mul(index, I64(side))))
            return now

        counted(builder, builder.sdiv(builder.sub(end, first), I64(side)), [], one)

    row_end, end = (builder.and_(x, I64(-4)) for x in (rows, count))

    def four_rows(row):
        each(I64(0), end, 4, lambda first: move(4)(row, first))
        each(end, count, 1, lambda j: each(row, builder.add(row, I64(4)), 1, lambda r: move(1)(r, j)))

    each(I64(0), row_end, 4, four_rows)
    each(row_end, rows, 1, lambda r: each(I64(0), count, 1, lambda j: move(1)(r, j)))
    builder.ret_void()
    return function


def transposed(builder, block):
    """The columns of four rows of four lanes."""

    def mixed(a, b, *lanes):
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, 4), list(lanes)))

    a, b, c, d = block
    low, high = [(mixed(x, y, 0, 4, 1, 5), mixed(x, y, 2, 6, 3, 7)) for x, y in ((a, b), (c, d))]
    return [mixed(low[i], high[i], *lanes) for i in range(2) for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))]


def widen(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (codes, groups, floats): a panel's [group of k][16][group] codes as [k][16] float32."""
    function, builder = entry(module, "widen", ir.VoidType(), [POINTER, I64, POINTER])
    codes, groups, floats = function.args
    count, group = WIDTH * kernel_set.group, kernel_set.group

    def one(index, now):
        emit_prefetch(builder, codes, builder.add(builder.mul(index, I64(count)), I64(AHEAD)))
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
