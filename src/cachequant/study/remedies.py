"""What spares a model the cost of int8 inputs: more bits, smaller groups, another basis; each with its price.

The yardstick is the divergence that int8 inputs add to int8 weights alone: a remedy leaves a part of it.
"""

from cachequant import schemes
from cachequant.schemes import POW2, Block, Scheme, Transform

WORST, FLOOR = "int8", "w8"  # all of the cost of inputs, and none of it
ORDER = (
    "int8", "int8-x128", "int8-x64", "int8-x32", "int8-block32", "bfp8", "int8-smooth", "int8-hadamard",
    "int8-hadamard-x128", "w8a12", "w8a16", "w8",
)  # fmt: skip


def rows(data: dict, width: int) -> list[dict]:
    """One row for each remedy that was scored.

    Parameters
    ----------
    data : of the quality notebook: "schemes", and "speed" of the same schemes.
    width : values of a row, for the bits of an input.

    Returns
    -------
    [{"scheme", "inputs" (in words), "input_bits" (scales counted), "kl", "intervals", "delta_percent", "left" (% of the
    divergence that int8 inputs add, None where int8 weights alone were not scored), "prefill" and "decode" (ratios to
    int8, None for int8 itself)}].
    """
    scored, ratios = data["schemes"], data["speed"]["ratios"]
    worst, floor = (scored.get(name, {}).get("kl") for name in (WORST, FLOOR))
    found = []
    for name in (n for n in ORDER if n in scored):
        scheme, row, ratio = schemes.get(name), scored[name], ratios.get(f"{name}/{WORST}", {})
        found.append({
            "scheme": name,
            "inputs": inputs(scheme),
            "input_bits": scheme.activation.bits_per_value(1, width) if scheme.activation else 32.0,
            **{key: row[key] for key in ("kl", "intervals", "delta_percent")},
            "left": None if floor is None else 100 * (row["kl"] - floor) / (worst - floor),
            "prefill": ratio.get("prefill_tok_s"),
            "decode": ratio.get("decode_tok_s"),
        })  # fmt: skip
    return found


def inputs(scheme: Scheme) -> str:
    """What happens to the inputs of a scheme, in words."""
    quantizer = scheme.activation
    if quantizer is None:
        return "float32"
    size = f"block of {quantizer.granularity.size}" if isinstance(quantizer.granularity, Block) else "row"
    scale = "power of two" if quantizer.scale == POW2 else "scale"
    words = f"{quantizer.bits} bits, one {scale} a {size}"
    return f"{_basis(scheme.transform)}, {words}" if scheme.transform else words


def _basis(transform: Transform) -> str:
    parts = ["smoothed"] if transform.smooth is not None else []
    return " and ".join([*parts, *(["rotated"] if transform.hadamard else [])])
