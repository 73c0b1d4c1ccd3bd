"""Generator of the input transform: factors a channel, then a Walsh-Hadamard rotation in blocks along the row.

The fast transform (Fino & Algazi 1976) adds and subtracts pairs at distance 1, 2, 4, ...; each value's operations are
the same in any arrangement of the loops, so the bits are those of `transform.walsh_hadamard`. Up to 64 values stay in
registers for all their rounds, further rounds pass over the row in the L1 cache.
"""

from llvmlite import ir

from cachequant.kernels.ir import F32, I32, I64, POINTER, emit_fma
from cachequant.kernels.micro import counted
from cachequant.kernels.rowops import LANES, entry, like, read, write
from cachequant.kernels.simd import KernelSet

CHUNK = 64  # values that stay in registers: eight vectors
AT_ONCE = 3  # further rounds of one pass over the row, again on eight vectors


def transform(kernel_set: KernelSet, module: ir.Module) -> ir.Function:
    """void (x, count, factors, block, out): out = H (factors * x) over `count` floats.

    `block` is 1 for no rotation, or a power of two that divides `count`. `out` may be `x`.
    """
    function, builder = entry(module, "transform", ir.VoidType(), [POINTER, I64, POINTER, I64, POINTER])
    x, count, factors, block, out = function.args
    done, many = builder.append_basic_block("done"), builder.append_basic_block("many")
    switch = builder.switch(block, many)
    sizes = [2**n for n in range(CHUNK.bit_length() - 1)]
    for size in sizes:
        switch.add_case(I64(size), builder.append_basic_block(f"block{size}"))
    for size, (_, place) in zip(sizes, switch.cases, strict=True):
        builder.position_at_end(place)
        _chunks(builder, x, count, factors, size, out)
        builder.branch(done)
    builder.position_at_end(many)
    _chunks(builder, x, count, factors, CHUNK, out)
    rounds = builder.sub(builder.cttz(block, ir.Constant(ir.IntType(1), 1)), I64(CHUNK.bit_length() - 1))

    def several(number):
        def one(index, carried):
            _rounds(builder, out, count, carried[0], number)
            return [builder.shl(carried[0], I64(number))]

        return one

    steps = counted(builder, builder.udiv(rounds, I64(AT_ONCE)), [I64(CHUNK)], several(AT_ONCE))
    counted(builder, builder.urem(rounds, I64(AT_ONCE)), steps, several(1))
    builder.branch(done)
    builder.position_at_end(done)
    builder.ret_void()
    return function


def _chunks(builder, x, count, factors, size, out):
    """Factors and all rounds within chunks of `size` values; single values are only scaled."""
    lanes = min(size, LANES)

    def one(index, now):
        first = builder.mul(index, I64(size))
        places = [builder.add(first, I64(i)) for i in range(0, size, lanes)]
        vectors = [
            builder.fmul(read(builder, x, p, 4, like(F32, lanes)), read(builder, factors, p, 4, like(F32, lanes)))
            for p in places
        ]
        for step in (2**n for n in range(lanes.bit_length() - 1)):
            vectors = [_within(builder, v, step) for v in vectors]
        for vector, place in zip(_across(builder, vectors), places, strict=True):
            write(builder, vector, out, place, 4)
        return now

    counted(builder, builder.sdiv(count, I64(size)), [], one)


def _within(builder, vector, step):
    """Sums and differences of lanes at a distance; multiplying by +-1 is exact, so the fma rounds like an addition."""
    lanes = vector.type.count
    other = ir.Constant(ir.VectorType(I32, lanes), [i ^ step for i in range(lanes)])
    sign = ir.Constant(vector.type, [-1.0 if i & step else 1.0 for i in range(lanes)])
    return emit_fma(builder, vector, sign, builder.shuffle_vector(vector, vector, other))


def _across(builder, vectors):
    """All rounds of sums and differences between whole vectors."""
    step = 1
    while step < len(vectors):
        for i in (i for i in range(len(vectors)) if not i & step):
            a, b = vectors[i], vectors[i + step]
            vectors[i], vectors[i + step] = builder.fadd(a, b), builder.fsub(a, b)
        step *= 2
    return vectors


def _rounds(builder, out, count, step, number):
    """`number` rounds over the whole row, the first at distance `step`, a multiple of the vector."""
    vector, size = ir.VectorType(F32, LANES), builder.shl(step, I64(number))

    def group(index, now):
        first = builder.mul(index, size)
        bases = [
            builder.gep(out, [builder.mul(builder.add(first, builder.mul(step, I64(i))), I64(4))])
            for i in range(2**number)
        ]

        def column(index, now):
            found = _across(builder, [read(builder, base, index, 4 * LANES, vector) for base in bases])
            for value, base in zip(found, bases, strict=True):
                write(builder, value, base, index, 4 * LANES)
            return now

        return counted(builder, builder.sdiv(step, I64(LANES)), now, column)

    counted(builder, builder.sdiv(count, size), [], group)
