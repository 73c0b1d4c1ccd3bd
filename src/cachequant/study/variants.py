"""A scheme with a page format, as one row of a comparison."""

from dataclasses import dataclass

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.kv import formats
from cachequant.kv.formats import PageFormat
from cachequant.schemes import Scheme


@dataclass(frozen=True)
class Variant:
    """A number format for weights and activations, and one for pages of keys and values."""

    scheme: Scheme
    kv: PageFormat
    calibration: str = "auto"

    @property
    def name(self) -> str:
        """``int8``, ``int8/k4v4``, or ``int8/k4v4/none`` without calibration."""
        if self.kv.name == "fp32":
            return self.scheme.name
        return f"{self.scheme.name}/{self.kv.name}" + ("" if self.calibration == "auto" else f"/{self.calibration}")

    def of(self, model):
        """The model in this variant, and what names everything that its numbers depend on."""
        made = model if self.scheme == model.scheme else model.with_scheme(self.scheme)
        if self.kv.name == "fp32":
            return made, repr(self.scheme)
        made = made.with_kv(self.kv, self.calibration)
        return made, f"{self.scheme!r} {made.pages.fingerprint}"


def get(name: "str | Scheme | Variant") -> Variant:
    """The variant of a name. Raises InputError naming what is allowed."""
    if isinstance(name, Variant):
        return name
    if isinstance(name, Scheme):
        return Variant(name, formats.get("fp32"))
    scheme, *rest = name.split("/")
    if len(rest) > 2:
        raise InputError(f"{name!r} is not a scheme, scheme/pages, or scheme/pages/calibration")
    return Variant(schemes.get(scheme), formats.get(rest[0] if rest else "fp32"), *rest[1:])
