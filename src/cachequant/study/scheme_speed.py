"""Speed of many schemes of one model, in turn within every round of one process: all run the same code and threads.

Weights of float32 are shared, so a dozen schemes fit into memory. Engines of other libraries need a process each:
`cachequant.study.bench` compares those.
"""

from collections.abc import Mapping, Sequence

from cachequant.decoder.model import Model
from cachequant.study import arms, comparison, workloads
from cachequant.study.crew import Progress, rotations, silent
from cachequant.study.timing import BenchResult

METRICS = ("prefill_tok_s", "decode_tok_s")


def measure(model: Model, names: Sequence[str], prompt: int, new: int, repeats: int) -> dict:
    """Prefill of `prompt` tokens and decode of `new` more, greedy, `repeats` interleaved rounds.

    Returns
    -------
    The object of `comparison.assemble`, with `weight_bytes` {scheme: bytes of packed weights}.
    """
    ids = workloads.prompt_ids(prompt, model.config.vocab, model.tokenizer)
    engines = {name: arms.Loaded(model if name == model.scheme.name else model.with_scheme(name)) for name in names}
    values = interleaved(engines, ids, new, repeats)
    return comparison.assemble(
        values,
        METRICS,
        {},
        {"workload": {"prompt": prompt, "new": new, "repeats": repeats, "batch": 1}},
        weight_bytes={name: engine.weight_bytes for name, engine in engines.items()},
    )


def interleaved(
    engines: Mapping[str, arms.Engine], ids: list[int], new: int, repeats: int, progress: Progress = silent
) -> dict[str, dict[str, list[float]]]:
    """{name: {metric: a value a round}} with METRICS, after a warm-up of every engine."""
    values = {name: {metric: [] for metric in METRICS} for name in engines}
    for engine in engines.values():
        arms.generate(engine, ids, 2)
    for r, order in rotations(list(engines), repeats):
        for done, name in enumerate(order):
            result = BenchResult.of(arms.generate(engines[name], ids, new).timing)
            for metric in METRICS:
                values[name][metric].append(getattr(result, metric))
            progress(r * len(order) + done + 1, repeats * len(order), f"measuring {name}")
    return values
