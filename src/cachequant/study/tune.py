"""Speed of the schemes that ``auto`` may stand for, on this machine: what `cachequant tune` measures.

All run in one process, interleaved round by round. What counts is the speed of a whole request, one prompt and its
answer, because a scheme may win one phase and lose the other. The schemes of the fixed table also run with every other
kernel set of this CPU; those rows are a note for people, since the set is chosen by what the CPU has, or by
CACHEQUANT_KERNELS.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from cachequant import kernels, schemes, tuning
from cachequant.assets.models import ModelAsset
from cachequant.decoder.calibration import build
from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.kernels import selfcheck, simd
from cachequant.schemes import BITS, Scheme
from cachequant.study import arms, comparison, provenance, scheme_speed, workloads
from cachequant.study.crew import Progress, silent

PROMPT, NEW = 270, 24  # tokens that are timed
ANSWER = 64  # tokens of the request's answer, each as long as a timed one
LEAST = 5  # rounds: the interval of fewer says little
METRICS = (*scheme_speed.METRICS, "speed")
_AT = "@"  # scheme @ kernel set, where it is not the one that would be taken


def tune(asset: ModelAsset, repeats: int = 9, threads: int | None = None, progress: Progress = silent) -> dict:
    """Measure the candidates and choose; nothing is stored.

    Parameters
    ----------
    asset : a model of float32 weights; random ones will do.
    repeats : interleaved rounds, at least LEAST.
    threads : of the kernels; None keeps the current setting.
    progress : called with (done, total, what).

    Returns
    -------
    The object of `comparison.assemble` with METRICS, `speed` being 1 / seconds of a request of PROMPT tokens and ANSWER
    new ones, and `choice` {scheme, table, why, date}, `kernels` {scheme: {set: ratio of speed to the set in use}}.

    Raises
    ------
    InputError : a quantized checkpoint, too few repeats, a context that is too short; before anything runs.
    """
    if repeats < LEAST:
        raise InputError(f"repeats {repeats!r}: a choice needs at least {LEAST} rounds")
    if asset.scheme is not None:
        raise InputError(f"{asset.name} is a checkpoint quantized as {asset.scheme.name!r}; allowed is a float32 model")
    if asset.config.context <= NEW:
        raise InputError(f"{asset.name} has a context of {asset.config.context} tokens; at least {NEW + 1} are needed")
    if threads is not None:
        kernels.set_threads(threads)
    table, candidates, missing = tuning.by_table().scheme, *_candidates(asset)
    if table in missing:
        raise InputError(
            f"{asset.name} cannot be run as {table!r}, which the others are compared with: {missing[table]}"
        )
    prompt = min(PROMPT, asset.config.context - NEW)
    work = [(name, None) for name in candidates]
    known = [name for name in candidates if name in (tuning.PAIRS, tuning.FOURS)]
    work += [(name, kernel_set) for name in known for kernel_set in _other_sets(schemes.get(name))]
    engines = {}
    for done, (name, kernel_set) in enumerate(work):
        progress(done, len(work), f"packing {name}")
        with _restricted_to(kernel_set):
            decoder = build(asset, schemes.get(name, schemes.DEFAULT_HEAD))  # the same head everywhere
            engines[name + (_AT + kernel_set if kernel_set else "")] = arms.Loaded(Model(asset, decoder))
    ids = workloads.prompt_ids(prompt, asset.config.vocab, asset.tokenizer)
    values = scheme_speed.interleaved(engines, ids, NEW, repeats, progress)
    for found in values.values():
        pairs = zip(found["prefill_tok_s"], found["decode_tok_s"], strict=True)
        found["speed"] = [1 / (prompt / prefill + ANSWER / decode) for prefill, decode in pairs]
    workload = {"prompt": prompt, "new": NEW, "answer": ANSWER, "repeats": repeats, "batch": 1}
    about = provenance.collect(models=[asset]) | {"workload": workload, "machine": tuning.machine()}
    result = comparison.assemble(values, METRICS, missing, about)
    scheme, why = tuning.choose({n: result["ratios"][f"{n}/{table}"]["speed"] for n in candidates if n != table}, table)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    result["choice"] = {"scheme": scheme, "table": table, "why": why, "date": date}
    result["kernels"] = {}
    for name, kernel_set in work:
        if kernel_set:
            ratio = result["ratios"][f"{name}{_AT}{kernel_set}/{name}"]["speed"]
            result["kernels"].setdefault(name, {})[kernel_set] = ratio
    return result


def _candidates(asset: ModelAsset) -> tuple[list[str], dict[str, str]]:
    """Schemes that this model can be run under, and {scheme: why not}."""
    found, missing = [], {}
    for name in schemes.FAITHFUL:
        try:
            if transform := schemes.get(name).transform:
                for k in (asset.config.width, asset.config.attention_width, asset.config.ffn):
                    transform.check(k)
            found.append(name)
        except InputError as error:
            missing[name] = str(error)
    return found, missing


def _other_sets(scheme: Scheme) -> list[str]:
    """Names of the sound kernel sets that could run a scheme but are not taken for it."""
    wide = scheme.activation.bits > BITS
    taken = selfcheck.active(wide)
    sets = [s for s in simd.available(wide) if s != taken and s.instruction]
    return [s.name for s in sets if not selfcheck.check(s)]


@contextmanager
def _restricted_to(kernel_set: str | None) -> Iterator[None]:
    """Matrices that are packed inside are packed for this kernel set; None changes nothing."""
    if kernel_set is None:
        yield
        return
    os.environ["CACHEQUANT_KERNELS"] = kernel_set  # not set before: with it, there are no other sets
    try:
        yield
    finally:
        del os.environ["CACHEQUANT_KERNELS"]
