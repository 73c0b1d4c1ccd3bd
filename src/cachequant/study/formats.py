"""Error of the 8-bit formats on given numbers, against what theory says from the scales alone.

A uniform quantizer with step d has error variance d^2/12 where its input is smooth on the scale of a step (Bennett
1948). With s the scale of a group and d = s/127, the signal-to-noise ratio depends on one thing: how far s lies above
the root mean square of what shares it. Granularity and scale rule act through that ratio only.
"""

from dataclasses import replace

import numpy as np

from cachequant import schemes
from cachequant.quantize import Quantized, dequantize, quantize
from cachequant.schemes import Quantizer

CEILING_DB = 150.0  # of a row that comes back unchanged


def decibel(ratio):
    return 10 * np.log10(ratio)


def snr_db(x: np.ndarray, quantizer: Quantizer) -> tuple[float, float]:
    """Signal-to-noise ratio of a round trip in dB, mean over the rows of the (N, K) matrix `x` that are not zero.

    A row is what a product sees of it: an output channel of a weight, a token of an activation. Energies of whole
    matrices would speak of the loudest token only.

    Returns
    -------
    measured : energy of a row over energy of the error that its codes make; at most `CEILING_DB`.
    predicted : with d^2/12 for every value, d the step of its group: what the scales say alone.
    """
    x = np.asarray(x, np.float32)
    q = quantize(x, quantizer)
    energy, error = _energy(x), _energy(x - dequantize(q))
    expected = (_members(q) * q.steps().astype(np.float64) ** 2).sum(1) / 12
    loud = energy > 0
    measured, predicted = (
        np.minimum(decibel(energy[loud] / np.maximum(e[loud], np.finfo(np.float64).tiny)), CEILING_DB).mean()
        for e in (error, expected)
    )
    return float(measured), float(predicted)


def rule_cost_db(steps: int, size: int = 32) -> float:
    """Expected loss in dB of scales 2^(k/steps), rounded up, against exact ones.

    The mean of 4^u for u uniform in [0, 1/steps]: error grows with the square of the scale, and largest magnitudes are
    taken as spread evenly in log2. And an exact scale returns the largest of the `size` values of a group unchanged, a
    coarser one does not.
    """
    return float(decibel((4 ** (1 / steps) - 1) * steps / np.log(4) * size / (size - 1)))


def sweep(matrices: dict[str, np.ndarray], quantizers: dict[str, Quantizer]) -> dict:
    """Measure every format on every matrix.

    Returns
    -------
    matrices : the labels, in the order of the lists below.
    formats : {format: {granularity, rule, bits, snr_db, predicted_db}}; bits a value over all matrices, scales counted
        as stored, and one SNR a matrix.
    """
    values = sum(x.size for x in matrices.values())
    formats = {}
    for name, quantizer in quantizers.items():
        pairs = [snr_db(x, quantizer) for x in matrices.values()]
        formats[name] = {
            "granularity": quantizer.granularity.name,
            "rule": rule_name(quantizer),
            "bits": sum(quantizer.bits_per_value(*x.shape) * x.size for x in matrices.values()) / values,
            "snr_db": [measured for measured, _ in pairs],
            "predicted_db": [predicted for _, predicted in pairs],
        }
    return {"matrices": list(matrices), "formats": formats}


def rule_loss(formats: dict, rule: str, granularity: str = "block32") -> float:
    """dB that a scale rule lost against exact scales of the same granularity, mean over matrices of a `sweep`."""
    exact, coarse = (np.mean(formats[f"{granularity}-{r}"]["snr_db"]) for r in ("exact", rule))
    return float(exact - coarse)


def rule_name(quantizer: Quantizer) -> str:
    """Name of the scale rule; exact scales stored as float16 count as a rule of their own."""
    return quantizer.scale.name + ("-fp16" if quantizer.half else "")


def all_formats() -> dict[str, Quantizer]:
    """The 35 formats of the grid, and exact scales stored as float16 for every granularity."""
    grid = [scheme.weight for scheme in schemes.grid().values()]
    half = [replace(q, half=True) for q in grid if q.scale == schemes.EXACT]
    return {q.name: q for q in grid + half}


def outliers(x: np.ndarray) -> dict:
    """How uneven the (N, K) matrix is.

    Returns
    -------
    kurtosis : fourth moment about the mean over the squared variance; 3 for a Gaussian.
    max_over_median : largest magnitude over the median magnitude.
    crest : median over rows of max / root mean square, what one scale a row has to span.
    channel : the column with the most energy.
    channel_share : its part of the energy of all columns.
    varying : part of the energy that is not the mean of its column, and so tells one row from another.
    loudest_row : the row with the most energy.
    loudest_over_median : its root mean square over that of the median row.
    channel_maxima : (K,) largest magnitude of each column.
    """
    x = np.asarray(x, np.float32)
    magnitude, rows = np.abs(x), _energy(x)
    columns = np.einsum("ij,ij->j", x, x, dtype=np.float64)
    squares, channel = (x - x.mean(dtype=np.float64).astype(np.float32)) ** 2, int(columns.argmax())
    return {
        "kurtosis": float((squares**2).mean(dtype=np.float64) / squares.mean(dtype=np.float64) ** 2),
        "max_over_median": float(magnitude.max() / np.median(magnitude)),
        "crest": float(np.median(magnitude.max(1) / np.sqrt(rows / x.shape[1]))),
        "channel": channel,
        "channel_share": float(columns[channel] / columns.sum()),
        "varying": float(len(x) * x.var(0, dtype=np.float64).sum() / columns.sum()),
        "loudest_row": int(rows.argmax()),
        "loudest_over_median": float(np.sqrt(rows.max() / np.median(rows))),
        "channel_maxima": magnitude.max(0),
    }


def distinct_in_blocks(x: np.ndarray, block: int = 32) -> dict:
    """How many different values blocks of a row hold: few of them where the numbers were codes before."""
    whole = x[:, : x.shape[1] // block * block].reshape(-1, block)
    distinct = 1 + (np.diff(np.sort(whole, axis=1), axis=1) != 0).sum(1)
    return {"median": float(np.median(distinct)), "most": int(distinct.max())}


def reproduced(x: np.ndarray, quantizer: Quantizer) -> float:
    """Share of the values of `x` that come back unchanged."""
    return float(np.mean(dequantize(quantize(x, quantizer)) == x))


def worked_example(values: list[float], quantizer: Quantizer) -> dict:
    """One group of values there and back: largest magnitude, scale, step, codes, and the values that come out."""
    x = np.array([values], np.float32)
    q = quantize(x, quantizer)
    step = float(q.steps()[0, 0])
    return {
        "values": list(values),
        "largest": float(np.abs(x).max()),
        "scale": step * quantizer.largest_code,
        "step": step,
        "codes": q.codes[0].tolist(),
        "back": dequantize(q)[0].tolist(),
    }


def _energy(x: np.ndarray) -> np.ndarray:
    """(N,) sums of squares of the rows."""
    return np.einsum("ij,ij->i", x, x, dtype=np.float64)


def _members(q: Quantized) -> np.ndarray:
    """(1, B) how many values of a row each scale covers."""
    k = q.codes.shape[1]
    block = q.quantizer.block(k)
    return np.minimum(block, k - np.arange(0, k, block))[None].astype(np.float64)
