"""What a checkpoint takes and gives: bytes of its file, memory of a process that loads it, and speed.

Every scheme has a fresh process of its own. Its *base* is what is resident once the library and the kernels are
loaded and a tiny model has run, before the model itself is touched; the peak from there on, loading and generating
included, minus the base is what the model costs. Speed is measured afterwards, interleaved round by round.
"""

import gc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.study import arms, comparison, provenance, rss, traffic, workloads
from cachequant.study.crew import Crew, Progress, checked, rotations, silent
from cachequant.study.processes import OPEN_SECONDS, Worker
from cachequant.study.timing import BenchResult, GenerationTiming

METRICS = ("prefill_tok_s", "decode_tok_s", "uncached_tok_s")
BASELINE = "fp32"
WARM_UP_TOKENS = 4


class FootprintWork:
    """The worker's side: a model loaded after the base was measured."""

    def __init__(self, model: str, scheme: str, family: str, threads: int):
        import cachequant.decoder.model

        _warm_up(scheme, family)
        rss.reset_peak()
        self._base = rss.memory()["rss_bytes"]
        self._engine = arms.Loaded(cachequant.decoder.model.load(model, scheme, threads=threads))

    def facts(self) -> dict:
        return {"base_bytes": self._base, "weight_bytes": self._engine.weight_bytes}

    def generate(self, ids: list[int], new: int, cached: bool = True) -> dict:
        """`new` greedy tokens; without the cache every token runs the whole text before it again."""
        return asdict(arms.generate(self._engine if cached else Uncached(self._engine), ids, new))


class QuantizeWork:
    """The worker's side of `conversion`: writes a checkpoint, and says what that took above the base."""

    def __init__(self, model: str, scheme: str, family: str, target: str):
        from cachequant.assets import models
        from cachequant.checkpoint.write import write_checkpoint

        _warm_up(scheme, family)
        rss.reset_peak()
        self._base = rss.memory()["rss_bytes"]
        write_checkpoint(models.resolve(model), target, scheme)

    def facts(self) -> dict:
        return {"base_bytes": self._base}


class Uncached:
    """An engine that forgets keys and values: a step is a prefill of everything so far."""

    def __init__(self, engine: arms.Engine):
        self._engine, self._ids = engine, []
        self.choose = engine.choose

    def start(self, ids: list[int]):
        self._ids = list(ids)
        return self._engine.start(self._ids)

    def step(self, token: int):
        return self.start([*self._ids, token])


def measure(
    model: str,
    names: Sequence[str],
    folder: Path,
    prompt: int = 8,
    new: int = 24,
    repeats: int = 5,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """File, memory and speed of float32 and of checkpoints.

    Parameters
    ----------
    model : a float32 model's name.
    names : schemes; `fp32` is the model as it is, every other one is written as a checkpoint.
    folder : where the checkpoints are written; those that are there already are used.
    prompt, new : tokens of the prompt, and new ones with and without cache, at least 2.
    repeats : interleaved rounds.

    Returns
    -------
    The object of `comparison.assemble` with the metrics METRICS, tokens a second (decoding leaves out the first token),
    and `facts` {scheme: {file_bytes, base_bytes, rss_bytes, peak_rss_bytes, above_bytes, weight_bytes}}, `above_bytes`
    being peak minus base.

    Raises
    ------
    InputError, AssetError : unknown models or schemes, lengths that do not fit; before anything runs.
    """
    from cachequant.assets import models
    from cachequant.kernels import cpu

    chosen, asset = checked(names, schemes.get), models.resolve(model)
    if new < 2 or repeats < 1 or prompt + new > asset.config.context:
        raise InputError(
            f"{prompt} + {new} tokens, {repeats} times: allowed are at least 2 new tokens, 1 repetition, and what fits "
            f"the context of {asset.config.context}"
        )
    threads = cpu.physical_cores() if threads is None else threads
    files = {name: _file(asset, scheme, Path(folder)) for name, scheme in chosen.items()}
    how = {"kind": "footprint", "family": asset.config.family, "threads": threads}
    requests = {n: {"model": model if n == BASELINE else str(files[n]), "scheme": n, **how} for n in chosen}
    ids = workloads.prompt_ids(prompt, asset.config.vocab, asset.tokenizer)
    with Crew(requests, threads, progress=progress) as crew:
        for name in crew.names:
            crew.ask(name, "generate", ids=ids, new=WARM_UP_TOKENS)
        values = _rounds(crew, ids, new, repeats, progress)
        facts = {name: _facts(crew, name, files[name]) for name in crew.names}
        missing = crew.missing
    return comparison.assemble(
        values,
        METRICS,
        missing,
        provenance.collect(models=[asset])
        | {
            "threads": {"workers": threads},
            "workload": {"prompt": prompt, "new": new, "repeats": repeats, "batch": 1},
        },
        facts=facts,
    )


def conversion(model: str, scheme: str, folder: Path) -> dict:
    """Memory of writing a checkpoint in a fresh process.

    Returns
    -------
    {"above_bytes": peak above the base, "source_bytes": of the float32 weights, "layer_bytes": of one decoder block's
    matrices in float32, "seconds"}.
    """
    from cachequant.assets import models

    asset = models.resolve(model)
    block = traffic.shape(asset.config)["multiplications"]["blocks"] // asset.config.layers
    how = {"kind": "quantize", "model": model, "scheme": scheme, "family": asset.config.family}
    with Worker(1) as worker:
        found = worker.ask("open", OPEN_SECONDS, target=str(Path(folder) / "converted"), **how)
    return {
        "above_bytes": found["peak_rss_bytes"] - found["base_bytes"],
        "source_bytes": asset.weights.nbytes,
        "layer_bytes": traffic.FP32_BYTES * block,
        "seconds": found["seconds"],
    }


def _warm_up(scheme: str, family: str) -> None:
    """Load the library and the kernels that the scheme needs, as running any model does."""
    import cachequant.checkpoint.read  # noqa: F401
    from cachequant.decoder.forward import Decoder
    from cachequant.decoder.random import TINY, random_weights
    from cachequant.kv.pages import PagePool
    from cachequant.kv.session import Session

    config = TINY[family]
    decoder = Decoder(config, random_weights(config), schemes.get(scheme))
    with Session(decoder, PagePool(config.layers, config.kv_heads, config.head_dim)) as session:
        session.extend([1, 2, 3])
        session.extend([4])
    del decoder, session
    gc.collect()


def _file(asset, scheme: schemes.Scheme, folder: Path) -> Path:
    """The file of the float32 weights, or the folder of the checkpoint."""
    from cachequant.checkpoint.write import write_checkpoint

    if scheme.name == BASELINE:
        return asset.weights.path
    target = folder / f"{asset.sha256[:12]}-{scheme.name.replace(':', '-')}"
    return target if target.is_dir() else write_checkpoint(asset, target, scheme)


def _rounds(crew: Crew, ids: list[int], new: int, repeats: int, progress: Progress) -> dict:
    values = {name: {metric: [] for metric in METRICS} for name in crew.names}
    for r, order in rotations(crew.names, repeats):
        for done, name in enumerate(order):
            runs = [crew.ask(name, "generate", ids=ids, new=new, cached=cached) for cached in (True, False)]
            progress(r * len(order) + done + 1, repeats * len(order), name)
            if None in runs:
                continue
            with_cache, without = (BenchResult.of(GenerationTiming(**run["timing"])) for run in runs)
            found = with_cache.prefill_tok_s, with_cache.decode_tok_s, without.decode_tok_s
            for metric, value in zip(METRICS, found, strict=True):
                values[name][metric].append(value)
    return values


def _facts(crew: Crew, name: str, file: Path) -> dict:
    files = file.glob("*.safetensors") if file.is_dir() else [file]
    base, now = crew.facts[name]["base_bytes"], crew.ask(name, "memory") or {}
    return {
        "file_bytes": sum(f.stat().st_size for f in files),
        "base_bytes": base,
        "weight_bytes": crew.facts[name]["weight_bytes"],
        **now,
        "above_bytes": now["peak_rss_bytes"] - base if now else None,
    }
