"""Number formats: how 8-bit codes share scales, and which matrices use which format.

A `Quantizer` is symmetric: a *granularity* (what shares a scale) and a *scale rule* (which scales are allowed). Codes
have 8 bits; those of activations may have 12 or 16, where multiplying them costs no more.
BFP8 is block floating point: blocks of 32 with power-of-two scales (as in MSFP and the OCP MX formats); "int8" is
the usual dynamic scheme with one exact scale a row (LLM.int8(), section 2; per token for activations).
"""

from dataclasses import dataclass, replace

from cachequant.errors import InputError
from cachequant.transform import Transform

BITS = 8
CODE_BITS = (BITS, 12, 16)


@dataclass(frozen=True)
class Tensor:
    """One scale for the whole matrix."""

    name = "tensor"

    def scales(self, rows: int, k: int) -> int:
        return 1


@dataclass(frozen=True)
class Row:
    """One scale a row: an output channel of a weight, a token of an activation."""

    name = "row"

    def scales(self, rows: int, k: int) -> int:
        return rows


@dataclass(frozen=True)
class Block:
    """One scale for `size` neighbours along a row; the last block of a row may be shorter."""

    size: int

    def __post_init__(self):
        if self.size not in BLOCK_SIZES:
            raise InputError(f"block size {self.size!r} is not one of {BLOCK_SIZES}")

    @property
    def name(self) -> str:
        return f"block{self.size}"

    def scales(self, rows: int, k: int) -> int:
        return rows * -(-k // self.size)


BLOCK_SIZES = (256, 128, 64, 32, 16)
Granularity = Tensor | Row | Block


@dataclass(frozen=True)
class ScaleRule:
    """Allowed scales: any (`steps=None`), or 2^(k/steps), the smallest one that is not below the largest magnitude."""

    steps: int | None

    def __post_init__(self):
        if self.steps not in SCALE_STEPS:
            raise InputError(
                f"scale steps {self.steps!r} is not one of {SCALE_STEPS} (None is exact, 1 a power of two)"
            )

    @property
    def name(self) -> str:
        return {None: "exact", 1: "pow2"}.get(self.steps, f"snap{self.steps}")

    @property
    def dtype(self) -> str:
        """How a scale is stored: the exponents of float32's powers of two fit a byte, finer indices do not."""
        return {None: "float32", 1: "int8"}.get(self.steps, "int16")


SCALE_STEPS = (None, 1, 2, 4, 8)
EXACT, POW2 = ScaleRule(None), ScaleRule(1)


@dataclass(frozen=True)
class Quantizer:
    """Symmetric codes of `bits` bits, [-127, 127] for 8, each worth one step = scale / largest code.

    Parameters
    ----------
    granularity : what shares a scale.
    scale : the scales that are allowed.
    half : store exact scales as float16 (rounded up, so that nothing clips) instead of float32.
    bits : of a code: 8, or for activations 12 or 16.
    """

    granularity: Granularity
    scale: ScaleRule
    half: bool = False
    bits: int = BITS

    def __post_init__(self):
        if self.half and self.scale != EXACT:
            raise InputError(f"float16 scales go with the exact rule, not with {self.scale.name!r}")
        if self.bits not in CODE_BITS:
            raise InputError(f"codes of {self.bits!r} bits: allowed are {', '.join(map(str, CODE_BITS))}")
        if self.half and self.bits != BITS:
            raise InputError(f"float16 scales go with codes of {BITS} bits, not of {self.bits}")

    @property
    def name(self) -> str:
        wide = f"-{self.bits}bit" if self.bits != BITS else ""
        return f"{self.granularity.name}-{self.scale.name}" + ("-fp16" if self.half else "") + wide

    @property
    def largest_code(self) -> int:
        """127, 2047 or 32767."""
        return 2 ** (self.bits - 1) - 1

    @property
    def scale_dtype(self) -> str:
        return "float16" if self.half else self.scale.dtype

    @property
    def scale_bits(self) -> int:
        return {"float32": 32, "float16": 16, "int16": 16, "int8": 8}[self.scale_dtype]

    def block(self, k: int) -> int:
        """How many neighbours along a row of `k` values share a scale."""
        return self.granularity.size if isinstance(self.granularity, Block) else k

    def bits_per_value(self, rows: int, k: int) -> float:
        """Bits a value of a (rows, k) matrix, its scales counted as they are stored."""
        return self.bits + self.scale_bits * self.granularity.scales(rows, k) / (rows * k)


@dataclass(frozen=True)
class Scheme:
    """Formats of one model: block matrices (`weight`), their inputs (`activation`), and the output projection (`head`).

    None means float32. With a weight format and no activation format the codes are widened and multiplied in float32.
    Embeddings stay float32 unless they are tied to a quantized head, which they then share. `transform` changes the
    basis of the block matrices' inputs before they are quantized.
    """

    name: str
    weight: Quantizer | None = None
    activation: Quantizer | None = None
    head: Quantizer | None = None
    transform: Transform | None = None

    def __post_init__(self):
        for place, quantizer in (("weight", self.weight), ("head", self.head)):
            if quantizer and quantizer.bits != BITS:
                raise InputError(
                    f"scheme {self.name!r}: {place} format {quantizer.name!r} has codes of {quantizer.bits} bits; "
                    f"those of weights have {BITS}, only activations may have more"
                )
        if self.activation and not self.weight:
            raise InputError(f"scheme {self.name!r}: an activation format needs a weight format beside it")
        if self.transform and (self.activation is None or self.activation.granularity == Tensor()):
            raise InputError(f"scheme {self.name!r}: a transform needs inputs quantized by rows or blocks")

    @property
    def chunk_stable(self) -> bool:
        """Whether logits are independent of how a prompt is cut; a per-tensor activation scale depends on the cut."""
        return self.activation is None or self.activation.granularity != Tensor()

    def bits_per_value(self, rows: int, k: int) -> float:
        """Bits a weight of a (rows, k) block matrix."""
        return self.weight.bits_per_value(rows, k) if self.weight else 32.0


def _both(name: str, quantizer: Quantizer) -> Scheme:
    return Scheme(name, quantizer, quantizer)


INT8, BFP8 = Quantizer(Row(), EXACT), Quantizer(Block(32), POW2)
PRESETS = {
    scheme.name: scheme
    for scheme in (
        Scheme("fp32"),
        _both("int8", INT8),
        _both("bfp8", BFP8),
        _both("int8-block32", Quantizer(Block(32), EXACT)),
        _both("bfp8-row", Quantizer(Row(), POW2)),
        Scheme("int8-tensor-w", Quantizer(Tensor(), EXACT), INT8),
        _both("int8-tensor", Quantizer(Tensor(), EXACT)),
        Scheme("w8", INT8),
        Scheme("bfp8-w", BFP8),
        Scheme("w8a12", INT8, replace(INT8, bits=12)),
        Scheme("w8a16", INT8, replace(INT8, bits=16)),
        Scheme("int8-hadamard", INT8, INT8, transform=Transform(hadamard=512)),
    )
}
HEADS = {"int8": INT8, "int8-block32": Quantizer(Block(32), EXACT, half=True)}
DEFAULT_HEAD = "int8-block32"  # what "+head" stands for: 8.5 bits


def grid() -> dict[str, Scheme]:
    """Every granularity with every scale rule, weights and activations alike: 35 schemes by name."""
    sizes = (Tensor(), Row(), *(Block(b) for b in BLOCK_SIZES))
    quantizers = [Quantizer(g, ScaleRule(s)) for g in sizes for s in SCALE_STEPS]
    return {q.name: _both(q.name, q) for q in quantizers}


def get(scheme: "str | Scheme", head: str | None = None) -> Scheme:
    """A scheme by name.

    Parameters
    ----------
    scheme : a preset, a grid name such as ``block32-pow2``, either with ``+head`` for a quantized head, or a `Scheme`.
    head : format of the output projection: None (as in `scheme`), ``int8`` or ``int8-block32``.

    Raises
    ------
    InputError : unknown names; the message lists the known ones.
    """
    if isinstance(scheme, Scheme):
        found = scheme
    else:
        base, plus, rest = str(scheme).partition("+")
        found = PRESETS.get(base) or grid().get(base)
        if found is None or (plus and not (rest == "head" or rest.removeprefix("head:") in HEADS)):
            raise InputError(
                f"unknown scheme {scheme!r}; presets: {', '.join(PRESETS)}; the grid: {{tensor,row,block256..block16}}-"
                f"{{exact,pow2,snap2,snap4,snap8}}; each with +head or +head:{{{','.join(HEADS)}}}"
            )
        if plus:
            head = head or (DEFAULT_HEAD if rest == "head" else rest.removeprefix("head:"))
    if head is None:
        return found
    if head not in HEADS:
        raise InputError(f"unknown head format {head!r}; allowed: {', '.join(HEADS)}")
    base = found.name.partition("+")[0]
    suffix = "+head" if head == DEFAULT_HEAD else f"+head:{head}"
    return replace(found, name=base + suffix, head=HEADS[head])
