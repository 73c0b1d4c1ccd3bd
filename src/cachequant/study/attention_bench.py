"""Speed of attention at decode against the length of the context, over page formats."""

from collections.abc import Sequence

from cachequant.errors import InputError
from cachequant.study import attention_arms, comparison, provenance, timing
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, checked, rotations, silent

GEOMETRY = ("layers", "heads", "kv_heads", "head_dim")
ARMS = ("sdpa-fp32", "kv-fp32", "kv-fp16", "kv-int8", "kv-k4v4", "kv-k3v3", "kv-k2v2")
CONTEXT = 4096
READ = "read"  # not an arm of the result: what memory allows, measured in every round


def attention(
    arms: Sequence[str] | None = None,
    model: str = "smollm2-135m",
    context: int = CONTEXT,
    repeats: int = 5,
    threads: int | None = None,
    progress: Progress = silent,
    geometry: Sequence[int] | None = None,
) -> dict:
    """One decoded token's attention in all layers of a model's geometry, arms interleaved, K/V out of memory.

    Parameters
    ----------
    arms : ``sdpa-fp32``, ``sdpa-fp16`` (torch), or ``kv-`` and a page format.
    model : whose layers, heads and head size are taken; no weights are read.
    context : cached tokens.
    geometry : (layers, heads, kv_heads, head_dim) instead of a model's.

    Returns
    -------
    The object of `comparison.assemble` with metrics `speed` (1/seconds), `gb_s` (bytes of the cache over the seconds),
    `bandwidth_fraction` (of reading alone, measured in the same round) and `bytes`.

    Raises
    ------
    InputError, AssetError : unknown arms or models, numbers that make no sense; before anything runs.
    """
    from cachequant.assets import models
    from cachequant.kernels import cpu

    arms = list(checked(arms or ARMS, attention_arms.get))
    threads = cpu.physical_cores() if threads is None else threads
    at_least_one(context=context, repeats=repeats, threads=threads)
    assets, llc = [], cpu.last_level_bytes()
    if geometry is None:
        assets = [models.resolve(model)]
        geometry = [getattr(assets[0].config, name) for name in GEOMETRY]
    geometry = check_geometry(geometry)
    how = {"geometry": geometry, "tokens": context, "stream_bytes": 2 * llc}
    requests = {a: {"kind": "attention", "arm": a, "threads": threads, **how} for a in arms}
    requests[READ] = {"kind": "read", "threads": threads, "size": 4 * llc}
    load, found, reads, done = provenance.load(), {arm: [] for arm in arms}, [], 0
    with Crew(requests, threads, dict.fromkeys(requests, 0.02), progress) as crew:
        for _, order in rotations(crew.names, repeats):
            for name in order:
                if name == READ:
                    reads.append((crew.ask(READ, "read") or {}).get("gb_s"))
                elif reply := crew.ask(name, "step"):
                    found[name].append(reply["seconds"])
                done += 1
                progress(done, repeats * len(order), name)
        facts, missing = crew.facts, {a: r for a, r in crew.missing.items() if a != READ}
    reads = [r for r in reads if r]
    return comparison.assemble(
        {arm: _metrics(seconds, facts[arm]["bytes"], reads) for arm, seconds in found.items() if seconds},
        ("speed", "gb_s", "bandwidth_fraction", "bytes"),
        missing,
        provenance.collect(models=assets)
        | {
            "threads": {"workers": threads},
            "workload": {"context": context, "repeats": repeats, "geometry": how["geometry"]},
            "copies": {arm: facts[arm]["copies"] for arm in arms if arm in facts},
            "last_level_cache_bytes": llc,
            "load_before": load,
            "load_after": provenance.load(),
        },
        read_gb_s=timing.summary(reads) if reads else None,
    )


def check_geometry(geometry: Sequence[int]) -> list[int]:
    """The geometry as a list. Raises InputError for one that no attention can have."""
    found = list(geometry)
    if len(found) != len(GEOMETRY) or any(n < 1 for n in found) or found[1] % found[2]:
        raise InputError(f"geometry {found}: give {', '.join(GEOMETRY)}, each at least 1, heads a multiple of kv_heads")
    return found


def _metrics(seconds: list[float], nbytes: int, reads: list[float]) -> dict[str, list[float]]:
    gb_s = [nbytes / s / 1e9 for s in seconds]
    return {
        "speed": [1 / s for s in seconds],
        "gb_s": gb_s,
        "bandwidth_fraction": [g / r for g, r in zip(gb_s, reads, strict=False)],
        "bytes": [float(nbytes)] * len(seconds),
    }
