"""Number formats: how codes share scales, what the scales may be, and how many bits that costs.

A `Quantizer` is symmetric: a *granularity* (what shares a scale) and a *scale rule* (which scales are allowed). Codes
have 8 bits; those of activations may have 12 or 16, where multiplying them costs no more.
"""

from dataclasses import dataclass

from cachequant.errors import InputError

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
