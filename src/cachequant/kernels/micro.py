"""Generator of the micro-kernels: one LLVM function per kernel set, kind of product and number of rows.

A micro-kernel computes a tile of `rows` x 16 outputs from a packed slice of inputs A and a packed panel of weights B,
vectorized along outputs, so that each output is one fixed sequence of operations whatever the tile (register tiles over
packed operands: Goto & van de Geijn 2008, section 4). Everything here takes an `ir.Module`, so the same text serves the
JIT and a test that compiles for another CPU.

Layouts (4-byte units)
    A, codes: [group of k][row] units of `group` codes, int16 x 2 or int8 x 4; A, floats: [k][row].
    B, codes: [group of k][16][group] int8; B, floats: [k][16].
    input steps: per block [row] float32, and for unsigned sets [row] int32 start values behind them.
    weight steps: per block [16] float32.
"""

from dataclasses import dataclass

from llvmlite import ir

from cachequant.kernels.ir import F32, I32, I64, LINE, POINTER, emit_fma, emit_prefetch, splat
from cachequant.kernels.products import Product
from cachequant.kernels.simd import WIDTH

FRESH, LAST = 1, 2  # start from zero instead of what C holds; turn the sums into results
REGISTERS = 16  # lanes of the vectors that there are 32 registers of: sums of a block and results fit both
AHEAD = 4096  # bytes from the weights being read to those being fetched


def counted(builder, count, carried, body):
    """`carried = body(index, carried)` for index < count; returns the last values. `count` may be 0."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(I64(0), before)
    phis = [builder.phi(value.type) for value in carried]
    for phi, value in zip(phis, carried, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
    builder.position_at_end(inside)
    results = body(index, phis)
    index.add_incoming(builder.add(index, I64(1)), builder.block)
    for phi, value in zip(phis, results, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis


def unrolled(builder, count, carried, body, times):
    """As `counted`, with `times` steps in one turn of the main loop."""

    def turn(index, values):
        first = builder.mul(index, I64(times))
        for u in range(times):
            values = body(builder.add(first, I64(u)), values, u)
        return values

    turns = builder.sdiv(count, I64(times))
    carried = counted(builder, turns, carried, turn)
    done = builder.mul(turns, I64(times))
    return counted(builder, builder.sub(count, done), carried, lambda i, values: body(builder.add(done, i), values, 0))


@dataclass
class Tile:
    """Emits the pieces of one tile: `rows` x WIDTH sums as vectors of the product's lanes."""

    builder: ir.IRBuilder
    product: Product
    rows: int

    def __post_init__(self):
        self.vectors = WIDTH // self.product.lanes
        self.floats = ir.VectorType(F32, self.product.lanes)
        self.cells = [(r, v) for r in range(self.rows) for v in range(self.vectors)]

    def read(self, base, offset, type_):
        """Load `type_` from `offset` bytes behind the pointer `base`."""
        place = self.builder.gep(base, [offset])
        value = self.builder.load(self.builder.bitcast(place, type_.as_pointer()))
        value.align = 1
        return value

    def write(self, value, base, offset):
        place = self.builder.bitcast(self.builder.gep(base, [offset]), value.type.as_pointer())
        self.builder.store(value, place).align = 1

    def scaled(self, index, factor, plus=0):
        return self.builder.add(self.builder.mul(index, I64(factor)), I64(plus))

    def zeros(self):
        vector = self.product.sums
        return [ir.Constant(vector, [0] * vector.count) for _ in self.cells]

    def places(self, ldc):
        """Byte offset in C of every cell."""
        return [self.builder.add(self.builder.mul(ldc, I64(r)), I64(4 * self.product.lanes * v)) for r, v in self.cells]

    def multiply(self, a, b, count, sums):
        """Add the products of `count` groups of k to the sums."""
        unit_bytes = 4 * self.product.units
        bytes_a, bytes_b = self.rows * unit_bytes, self.product.group_bytes

        def step(index, sums, turn):
            if turn * WIDTH * bytes_b % LINE == 0:
                emit_prefetch(self.builder, b, self.scaled(index, WIDTH * bytes_b, AHEAD))
            at_b = [self.scaled(index, WIDTH * bytes_b, v * self.product.lanes * bytes_b) for v in range(self.vectors)]
            right = [self.product.weights(self, b, offset) for offset in at_b]
            sums = list(sums)
            for r in range(self.rows):
                left = self.product.inputs(self, a, self.scaled(index, bytes_a, 4 * r))
                for v in range(self.vectors):
                    cell = r * self.vectors + v
                    sums[cell] = self.product.add(self, sums[cell], left, right[v])
            return sums

        return unrolled(self.builder, count, sums, step, 2)

    def row_scalar(self, base, r, type_=F32):
        return splat(self.builder, self.read(base, I64(4 * r), type_), self.product.lanes)

    def start(self, steps):
        """First values of the sums of a block."""
        if not (self.product.integer and self.product.unsigned):
            return self.zeros()
        rows = [self.row_scalar(steps, self.rows + r, I32) for r in range(self.rows)]
        return [rows[r] for r, _ in self.cells]

    def scales(self, x_steps, w_steps):
        """Worth of one unit of every sum in turn: input step times weight step, or the weight step alone.

        Generated one by one, between the uses: all at once they would not fit the registers.
        """
        w = [self.read(w_steps, I64(4 * self.product.lanes * v), self.floats) for v in range(self.vectors)]
        for r in range(self.rows):
            x = self.row_scalar(x_steps, r) if self.product.integer else None
            for v in range(self.vectors):
                yield self.builder.fmul(x, w[v]) if self.product.integer else w[v]

    def to_float(self, total):
        return self.builder.sitofp(total, self.floats) if self.product.integer else total


def chain(module: ir.Module, product: Product, rows: int) -> ir.Function:
    """One sum over k per output, which may be cut: C keeps the raw sums between calls with parts of k.

    void (a, b, count, c, ldc, x_steps, w_steps, mode); `mode` has FRESH for the first part of k and LAST for the last,
    where c = float(sum) * (x_step * w_step) for integers and sum * w_step for floats (w_steps null: the sum itself).
    """
    signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, I64, POINTER, I64, POINTER, POINTER, I64])
    function, builder = define(module, f"chain_{product.name}_{rows}", signature)
    a, b, count, c, ldc, x_steps, w_steps, mode = function.args
    tile = Tile(builder, product, rows)
    places = tile.places(ldc)
    has = [builder.icmp_signed("!=", builder.and_(mode, I64(bit)), I64(0)) for bit in (FRESH, LAST)]
    fresh, last = builder.append_basic_block("fresh"), builder.append_basic_block("more")
    ready = builder.append_basic_block("ready")
    builder.cbranch(has[0], fresh, last)
    builder.position_at_end(fresh)
    new = tile.start(x_steps)
    builder.branch(ready)
    builder.position_at_end(last)
    old = [tile.read(c, place, product.sums) for place in places]
    builder.branch(ready)
    builder.position_at_end(ready)
    sums = [builder.phi(product.sums) for _ in places]
    for phi, x, y in zip(sums, new, old, strict=True):
        phi.add_incoming(x, fresh)
        phi.add_incoming(y, last)
    sums = tile.multiply(a, b, count, sums)
    with builder.if_else(has[1]) as (then, otherwise):
        with then:
            scaled = builder.icmp_unsigned("!=", builder.ptrtoint(w_steps, I64), I64(0))
            with builder.if_else(scaled) as (yes, no):
                with yes:
                    for total, scale, place in zip(sums, tile.scales(x_steps, w_steps), places, strict=True):
                        tile.write(builder.fmul(tile.to_float(total), scale), c, place)
                with no:
                    for total, place in zip(sums, places, strict=True):
                        tile.write(total, c, place)
        with otherwise:
            for total, place in zip(sums, places, strict=True):
                tile.write(total, c, place)
    builder.ret_void()
    return function


def blocks(module: ir.Module, product: Product, rows: int) -> ir.Function:
    """A sum over k per block and output; c = fma(float(sum), x_step * w_step, c) for ascending blocks.

    void (a, b, count, c, ldc, x_steps, w_steps, mode, block, shift): `count` groups of k in blocks of `block` groups,
    the last one may be shorter; 2^shift blocks share their weight steps.
    """
    arguments = [POINTER, POINTER, I64, POINTER, I64, POINTER, POINTER, I64, I64, I64]
    function, builder = define(module, f"blocks_{product.name}_{rows}", ir.FunctionType(ir.VoidType(), arguments))
    a, b, count, c, ldc, x_steps, w_steps, mode, block, shift = function.args
    tile = Tile(builder, product, rows)
    places = tile.places(ldc)
    kept = product.lanes >= REGISTERS  # results stay in registers from block to block
    with builder.if_then(builder.icmp_signed("!=", builder.and_(mode, I64(FRESH)), I64(0))):
        for place in places:
            tile.write(ir.Constant(tile.floats, [0.0] * product.lanes), c, place)

    def one(index, results):
        first = builder.mul(index, block)
        left = builder.sub(count, first)
        size = builder.select(builder.icmp_signed("<", left, block), left, block)
        at_a = builder.gep(a, [tile.scaled(first, 4 * rows * product.units)])
        at_b = builder.gep(b, [tile.scaled(first, WIDTH * product.group_bytes)])
        x = builder.gep(x_steps, [builder.mul(index, I64(4 * rows * (1 + product.unsigned)))])
        w = builder.gep(w_steps, [builder.mul(builder.lshr(index, shift), I64(4 * WIDTH))])
        sums = tile.multiply(at_a, at_b, size, tile.start(x))
        new = []
        for i, (total, scale) in enumerate(zip(sums, tile.scales(x, w), strict=True)):
            old = results[i] if kept else tile.read(c, places[i], tile.floats)
            new.append(emit_fma(builder, tile.to_float(total), scale, old))
            if not kept:
                tile.write(new[i], c, places[i])
        return new if kept else []

    number = builder.sdiv(builder.add(count, builder.sub(block, I64(1))), block)
    results = [tile.read(c, place, tile.floats) for place in places] if kept else []
    for result, place in zip(counted(builder, number, results, one), places[: len(results)], strict=True):
        tile.write(result, c, place)
    builder.ret_void()
    return function


def by_rows(module: ir.Module, emit, name: str, product: Product, largest: int) -> ir.Function:
    """The kernel for any number of rows up to `largest`, which come first: a switch in front of one function each."""
    kernels = [emit(module, product, rows) for rows in range(1, largest + 1)]
    signature = kernels[0].function_type
    wrapped = ir.FunctionType(ir.VoidType(), [I64, *signature.args])
    function, builder = define(module, name, wrapped, public=True)
    done = builder.append_basic_block("done")
    switch = builder.switch(function.args[0], done)
    for rows, kernel in enumerate(kernels, 1):
        case = builder.append_basic_block(f"rows{rows}")
        switch.add_case(I64(rows), case)
        builder.position_at_end(case)
        builder.call(kernel, function.args[1:])
        builder.branch(done)
    builder.position_at_end(done)
    builder.ret_void()
    return function


def define(module: ir.Module, name: str, signature: ir.FunctionType, public: bool = False):
    """A function that is never inlined, so that its registers are its own, and a builder at its start."""
    function = ir.Function(module, signature, name)
    function.linkage = "external" if public else "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    return function, ir.IRBuilder(function.append_basic_block("entry"))
