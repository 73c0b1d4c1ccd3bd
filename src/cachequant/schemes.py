"""Schemes: which matrices use which number format, by name.

BFP8 is block floating point: blocks of 32 with power-of-two scales (as in MSFP and the OCP MX formats); "int8" is the
usual dynamic scheme with one exact scale a row (LLM.int8(), section 2; per token for activations). Most of int8's cost
in quality comes from activations; the schemes that spare it give them more bits, smaller blocks, or another basis.
"""

from dataclasses import dataclass, replace

from cachequant.errors import InputError
from cachequant.quantizers import (
    BITS,
    BLOCK_SIZES,
    CODE_BITS,
    EXACT,
    POW2,
    SCALE_STEPS,
    Block,
    Granularity,
    Quantizer,
    Row,
    ScaleRule,
    Tensor,
)

__all__ = [
    "BFP8", "BITS", "BLOCK_SIZES", "CODE_BITS", "EXACT", "INT8", "POW2", "PRESETS", "SCALE_STEPS", "Block",
    "Granularity", "Quantizer", "Row", "ScaleRule", "Scheme", "Tensor", "Transform", "get", "grid",
]  # fmt: skip
SMALLEST_BLOCK, LARGEST_BLOCK = 4, 4096  # of a rotation: fewer values spread nothing; more leave the L1 cache


@dataclass(frozen=True)
class Transform:
    """How the inputs of every block matrix are transformed.

    hadamard : values that are rotated together, a power of two; rows of K take the largest one that divides K and is
        not above this. None: no rotation.
    seed : of the random signs in front of the rotation.
    smooth : alpha of SmoothQuant, from 0 (the weights' channels become equally large) to 1 (the inputs' do). None: no
        smoothing.
    """

    hadamard: int | None = None
    seed: int = 0
    smooth: float | None = None

    def __post_init__(self):
        h, alpha = self.hadamard, self.smooth
        if h is not None and not (SMALLEST_BLOCK <= h <= LARGEST_BLOCK and h & (h - 1) == 0):
            raise InputError(
                f"a rotation over {h!r} values: allowed are powers of two from {SMALLEST_BLOCK} to {LARGEST_BLOCK}"
            )
        if alpha is not None and not 0 <= alpha <= 1:
            raise InputError(f"smoothing with alpha {alpha!r}: allowed is 0 to 1")

    def check(self, k: int) -> None:
        """Raises InputError if inputs of `k` values cannot be rotated, because no block divides them."""
        if not self.fits(k):
            raise InputError(f"inputs of {k} values cannot be rotated: {k} is not a multiple of {SMALLEST_BLOCK}")

    def fits(self, k: int) -> bool:
        """Whether inputs of `k` values can be transformed."""
        return self.hadamard is None or k % SMALLEST_BLOCK == 0


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
    def calibrated(self) -> bool:
        """Whether packing has to know the largest inputs of every channel."""
        return self.transform is not None and self.transform.smooth is not None

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
Q8_0 = Quantizer(Block(32), EXACT, half=True)  # the layout of ggml's type of this name
PRESETS = {
    scheme.name: scheme
    for scheme in (
        Scheme("fp32"),
        _both("int8", INT8),
        _both("bfp8", BFP8),
        _both("int8-block32", Quantizer(Block(32), EXACT)),
        Scheme("q8_0", Q8_0, Quantizer(Block(32), EXACT)),
        _both("bfp8-row", Quantizer(Row(), POW2)),
        Scheme("int8-tensor-w", Quantizer(Tensor(), EXACT), INT8),
        _both("int8-tensor", Quantizer(Tensor(), EXACT)),
        Scheme("w8", INT8),
        Scheme("bfp8-w", BFP8),
        Scheme("w8a12", INT8, replace(INT8, bits=12)),
        Scheme("w8a16", INT8, replace(INT8, bits=16)),
        *(Scheme(f"int8-x{size}", INT8, Quantizer(Block(size), EXACT)) for size in (32, 64, 128)),
        Scheme("int8-hadamard", INT8, INT8, transform=Transform(hadamard=512)),
        Scheme("int8-hadamard-x128", INT8, Quantizer(Block(128), EXACT), transform=Transform(hadamard=512)),
        Scheme("int8-smooth", INT8, INT8, transform=Transform(smooth=0.5)),
    )
}
AUTO = "auto"  # stands for what this CPU multiplies fastest among the schemes that keep the quality
TOLERANCE = 0.35  # percent of perplexity
# Those that keep it: schemes whose published rise of perplexity is not shown to be above TOLERANCE, that is, the lower
# end of its 95 % interval is not (the chapter on quality; a test compares this list with the published results).
FAITHFUL = ("w8", "bfp8-w", "w8a12", "w8a16", "int8-hadamard", "int8-hadamard-x128")
HEADS = {"int8": INT8, "int8-block32": Q8_0}
DEFAULT_HEAD = "int8-block32"  # what "+head" stands for: 8.5 bits


def grid() -> dict[str, Scheme]:
    """Every granularity with every scale rule, weights and activations alike: 35 schemes by name."""
    sizes = (Tensor(), Row(), *(Block(b) for b in BLOCK_SIZES))
    quantizers = [Quantizer(g, ScaleRule(s)) for g in sizes for s in SCALE_STEPS]
    return {q.name: _both(q.name, q) for q in quantizers}


def automatic() -> str:
    """Name of the scheme that ``auto`` stands for here: what `cachequant tune` chose, else that of a fixed table."""
    from cachequant import tuning

    return tuning.current().scheme


def get(scheme: "str | Scheme", head: str | None = None) -> Scheme:
    """A scheme by name.

    Parameters
    ----------
    scheme : a preset, a grid name such as ``block32-pow2``, ``auto`` (see `automatic`), each with ``+head`` for a
        quantized head, or a `Scheme`.
    head : format of the output projection: None (as in `scheme`), ``int8`` or ``int8-block32``.

    Raises
    ------
    InputError : unknown names; the message lists the known ones.
    """
    if isinstance(scheme, Scheme):
        found = scheme
    else:
        base, plus, rest = str(scheme).partition("+")
        base = automatic() if base == AUTO else base
        found = PRESETS.get(base) or grid().get(base)
        if found is None or (plus and not (rest == "head" or rest.removeprefix("head:") in HEADS)):
            raise InputError(
                f"unknown scheme {scheme!r}; presets: {', '.join(PRESETS)}, or {AUTO}; the grid: "
                f"{{tensor,row,block256..block16}}-{{exact,pow2,snap2,snap4,snap8}}; "
                f"each with +head or +head:{{{','.join(HEADS)}}}"
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
