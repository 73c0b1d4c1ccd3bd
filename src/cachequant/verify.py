"""Checks of one model on this machine: parity with transformers, and what the library promises about its own bits.

Each check has a measured value and a limit. A check that could not run is reported with `ok` None, and the report as a
whole is ok only if there are checks and all of them ran and passed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cachequant import kernels, parity, quantize, schemes
from cachequant.assets import models, texts
from cachequant.check import Check, Report
from cachequant.checkpoint import checks
from cachequant.decoder.calibration import build
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.model import Model
from cachequant.kernels import gemm, selfcheck
from cachequant.kv import codec, formats
from cachequant.kv.codec import GRANULE
from cachequant.schemes import Quantizer, Scheme

HALF_STEP_LIMIT = 1.001  # quantization error in half steps; beyond 1 only by float32 rounding
PARITY_TOKENS, PROMPTS, PROMPT_TOKENS = 512, 8, 32
C1_TOKENS = 272  # crosses boundaries of pages (32) and of an attention segment (256)
GRID_LAYERS = 2
STORED, STORED_TOKENS = ("int8", "bfp8+head", "q8_0+head"), 40  # round trips through files
PAGES_UNDER = schemes.get("int8")  # the scheme under which page formats are checked
# most relative squared error of a Gaussian vector of 64: 2 % above what the searched scale reaches
DISTORTION = {2: 1.02 * 0.111, 3: 1.02 * 0.0296, 4: 1.02 * 0.0072}


def verify(model: str = "smollm2-135m", report: Callable[[int, int, str], None] | None = None) -> Report:
    """Run every check on a model.

    Parameters
    ----------
    model : as for `cachequant.load`.
    report : called with steps done, all steps, and the next step's name.

    Raises
    ------
    InputError, AssetError, ConfigError, NumericsError : the model cannot be loaded.
    """
    asset = models.resolve(model)
    source, ids, prompts = _tokens(asset)
    threads = kernels.get_threads()
    found: list[Check] = []
    try:
        steps = _steps(asset, ids, prompts)
        for done, (name, run) in enumerate(steps.items()):
            if report:
                report(done, len(steps), name)
            found += run()
    finally:
        kernels.set_threads(threads)
    return Report(asset.name, source, found)


def _tokens(asset: models.ModelAsset) -> tuple[str, list[int], list[list[int]]]:
    """Name of the source, ids for parity and determinism, and prompts from fixed offsets."""
    c = asset.config
    length, prompt = min(PARITY_TOKENS, c.context), min(PROMPT_TOKENS, c.context // 2)
    if asset.tokenizer is None:
        ids = np.random.default_rng(2026).integers(0, c.vocab, length + PROMPTS * prompt).tolist()
        return "seeded token ids", ids[:length], [ids[length + i * prompt :][:prompt] for i in range(PROMPTS)]
    text = texts.default()
    starts = [i * len(text.text) // PROMPTS for i in range(PROMPTS)]
    encode = asset.tokenizer.encode
    return (
        text.name,
        encode(text.text[: 16 * length])[:length],
        [encode(text.text[s : s + 16 * prompt])[:prompt] for s in starts],
    )


def _steps(
    asset: models.ModelAsset, ids: list[int], prompts: list[list[int]]
) -> dict[str, Callable[[], Iterator[Check]]]:
    """Every step by name, in order. A checkpoint has one scheme, and is compared with the values of its codes."""
    layers = min(GRID_LAYERS, asset.config.layers)
    few = checks.shortened(asset, layers)
    whole, short, stored = _Models(asset), _Models(few), asset.scheme
    steps = {"kernels": _kernels}
    if stored is None:
        steps["quantizers"] = lambda: _round_trips(asset)
        steps["parity"] = lambda: parity.compare(whole.under(schemes.get("fp32")), asset, ids, prompts)
        steps |= {f"stored {s}": lambda s=s: _stored(few, s, ids) for s in STORED}
    elif stored.transform is None:
        steps["parity"] = lambda: parity.compare_codes(asset, ids, prompts)
    for s in c1_schemes(asset.config) if stored is None else [stored]:
        steps[s.name] = lambda s=s: _determinism(whole.under(s), s.name, ids)
    for s in grid_schemes() if stored is None else []:
        name = f"{s.name} ({layers} layers)"
        steps[name] = lambda s=s, name=name: _determinism(short.under(s), name, ids, "hidden")
    for kv in page_formats(asset.config):
        name = f"pages {kv} ({layers} layers)"
        steps[name] = lambda kv=kv, name=name: _pages(short.under(stored or PAGES_UNDER).with_kv(kv, "none"), name, ids)
    return steps


def _stored(asset: models.ModelAsset, scheme: str, ids: list[int]) -> Iterator[Check]:
    """A model written and read again computes the same bits."""
    chosen, ids = schemes.get(scheme), ids[:STORED_TOKENS]
    differing = checks.checkpoint_round_trip(asset, chosen, ids)
    yield Check(f"checkpoint {scheme}", differing == 0, differing, 0, f"{asset.config.layers} layers")
    if scheme.startswith("q8_0") and checks.fits_gguf(asset.config):
        differing = checks.gguf_round_trip(asset, chosen, ids)
        yield Check(f"gguf {scheme}", differing == 0, differing, 0, f"{asset.config.layers} layers")


def page_formats(config: DecoderConfig) -> list[str]:
    """Page formats beside float32 that fit a model's head size."""
    return [name for name in formats.NAMES if name != "fp32" and config.head_dim % GRANULE == 0]


def _pages(model: Model, name: str, ids: list[int]) -> Iterator[Check]:
    """Contract C1 over coded pages; a branch and a saved session go on with the same bits; distortion of the codes."""
    yield from _determinism(model, name, ids, "hidden")
    ids = ids[:C1_TOKENS]
    want, cut = _outputs(model, "hidden", ids, [len(ids)])[-1:], len(ids) // 2
    with TemporaryDirectory() as folder, model.session() as session:
        session.extend(ids, "none")
        session.save(Path(folder) / "session")
        with session.fork(cut) as branch:
            differing = _differing(branch.extend(ids[cut:], "hidden")[-1:], want)
        yield Check(f"branch {name}", differing == 0, differing, 0)
        with model.load_session(Path(folder) / "session") as restored:
            restored.rewind(len(ids) - 1)
            differing = _differing(restored.extend(ids[-1:], "hidden"), want)
        yield Check(f"snapshot {name}", differing == 0, differing, 0)
    for bits in sorted({b for b in model.kv.sides if b in DISTORTION}):
        y = np.random.default_rng(0).standard_normal((4096, 64)).astype(np.float32)
        error = float(((codec.decode(*codec.encode(y, bits), bits) - y) ** 2).sum() / (y**2).sum())
        yield Check(f"distortion of {bits} bits, {name}", error <= DISTORTION[bits], error, DISTORTION[bits])


class _Models:
    """One model under one scheme after the other; each takes the parts that do not change from its predecessor."""

    def __init__(self, asset: models.ModelAsset):
        self._asset, self._last = asset, None

    def under(self, scheme: Scheme) -> Model:
        if self._last is None:
            self._last = Model(self._asset, build(self._asset, scheme))
        elif self._last.scheme != scheme:
            self._last = self._last.with_scheme(scheme)
        return self._last


def c1_schemes(config: DecoderConfig) -> list[Scheme]:
    """Presets that contract C1 covers and that fit the model, and a quantized head of each kind."""
    heads = [schemes.get("int8", head) for head in schemes.HEADS] + [schemes.get("w8", schemes.DEFAULT_HEAD)]
    sizes = (config.width, config.attention_width, config.ffn)
    fitting = [s for s in schemes.PRESETS.values() if s.transform is None or all(map(s.transform.fits, sizes))]
    return [s for s in fitting if s.chunk_stable] + heads


def grid_schemes() -> list[Scheme]:
    """The rest of the grid that contract C1 covers; it differs from the presets in its scales only."""
    known = {(s.weight, s.activation) for s in schemes.PRESETS.values()}
    return [s for s in schemes.grid().values() if s.chunk_stable and (s.weight, s.activation) not in known]


def _kernels() -> Iterator[Check]:
    kernel_set = selfcheck.active()
    faults = selfcheck.check(kernel_set)
    yield Check(f"kernels {kernel_set.name}", not faults, len(faults), 0, ", ".join(faults))


def _round_trips(asset: models.ModelAsset) -> Iterator[Check]:
    """Real weights: no error above half a step, and packed codes that read back as they were written."""
    weight = asset.weights[asset.config.linear_names()[-1] + ".weight"][:512]
    quantizers = [s.weight for s in schemes.grid().values()] + [q for q in schemes.HEADS.values() if q.half]
    for quantizer in quantizers:
        yield _round_trip(weight, quantizer)


def _round_trip(weight: np.ndarray, quantizer: Quantizer) -> Check:
    q = quantize.quantize(weight, quantizer)
    values = quantize.dequantize(q)
    steps = np.repeat(q.steps(), quantizer.block(weight.shape[1]), axis=1)[:, : weight.shape[1]]
    error = float((np.abs(weight - values) / np.where(steps > 0, steps / 2, 1)).max())
    same = np.array_equal(gemm.rows(gemm.pack_codes(q), np.arange(len(weight))), values)
    note = "" if same else "packed codes read back differently"
    return Check(f"round trip {quantizer.name}", same and error <= HALF_STEP_LIMIT, error, HALF_STEP_LIMIT, note)


def _determinism(model: Model, name: str, ids: list[int], what: str = "all") -> Iterator[Check]:
    """Contract C1: every position has the same bits however tokens are cut, and for any number of threads.

    `what` is "all" for logits, or "hidden" for the states before the head, where another scheme has checked the head.
    """
    ids = ids[:C1_TOKENS]
    whole = _outputs(model, what, ids, [len(ids)])
    rng = np.random.default_rng(len(ids))
    random = np.sort(rng.choice(np.arange(1, len(ids)), 5, replace=False))
    single = [*range(1, len(ids))[:64], *range(250, len(ids) - 10)]  # the first two pages; around the segment's end
    differing = sum(_differing(_outputs(model, what, ids, [*ends, len(ids)]), whole) for ends in (random, single))
    yield Check(f"chunking {name}", differing == 0, differing, 0)
    if kernels.set_threads(2) < 2:
        note = "not run: one thread only; set NUMBA_NUM_THREADS=2"
        yield Check(f"threads {name}", None, None, 0, note)
        return
    ends = [len(ids) - 2, len(ids) - 1, len(ids)]  # prefill and decode
    two = _outputs(model, what, ids, ends)
    kernels.set_threads(1)
    one = _outputs(model, what, ids, ends)
    kernels.set_threads()
    differing = _differing(one, whole) + _differing(two, whole)
    yield Check(f"threads {name}", differing == 0, differing, 0)


def _outputs(model: Model, what: str, ids: list[int], ends: list[int]) -> np.ndarray:
    """(T, V) logits or (T, width) states of all positions, the tokens given in pieces that end at `ends`."""
    with model.session() as session:
        return np.concatenate([session.extend(ids[session.position : end], what) for end in ends])


def _differing(a: np.ndarray, b: np.ndarray) -> int:
    """How many float32 values differ in their bits."""
    return int(np.count_nonzero(a.view(np.uint32) != b.view(np.uint32)))
