"""Speed of matrix products: many rows against the arithmetic peak, one row against the bandwidth of memory."""

from collections.abc import Sequence

from cachequant.study import comparison, gemm_arms, provenance, timing
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, checked, rotations, silent

GEMM_ARMS = ("torch-fp32", "torch-int8", "fp32", "bfp8", "int8", "int8-block32", "w8")
ROWS = 270
READ = "read"  # not an arm of the result: what memory allows, measured in every round
# name: (N, K) of a block's products; q, k, v and gate, up share their input and are one product each
SHAPES = {
    "gpt2 qkv": (2304, 768),
    "gpt2 o": (768, 768),
    "gpt2 up": (3072, 768),
    "gpt2 down": (768, 3072),
    "smollm2 qkv": (960, 576),
    "smollm2 o": (576, 576),
    "smollm2 gate+up": (3072, 576),
    "smollm2 down": (576, 1536),
}


class GemmBench:
    """Arms with packed random weights, for any number of measurements.

    Parameters
    ----------
    arms : names of `cachequant.study.gemm_arms`.
    model : None for the shapes of GPT-2 small and SmolLM2 together, or a model's name for its own.
    rows : M of the large products.
    threads : of every arm; None is one a physical core.
    progress : called with (done, total, what).
    """

    def __init__(
        self,
        arms: Sequence[str] = GEMM_ARMS,
        model: str | None = None,
        rows: int = ROWS,
        threads: int | None = None,
        progress: Progress = silent,
    ):
        from cachequant.kernels import cpu

        self._arms = list(checked(arms, gemm_arms.get))
        self.threads = cpu.physical_cores() if threads is None else threads
        at_least_one(threads=self.threads, rows=rows)
        self._shapes, self._models = (SHAPES, []) if model is None else _shapes_of(model)
        self._rows, self._progress, self._llc = rows, progress, cpu.last_level_bytes()
        how = {"shapes": list(self._shapes.values()), "rows": rows, "stream_bytes": 2 * self._llc}
        requests = {a: {"kind": "gemm", "arm": a, "threads": self.threads, **how} for a in self._arms}
        requests[READ] = {"kind": "read", "threads": self.threads, "size": 4 * self._llc}
        self._crew = Crew(requests, self.threads, dict.fromkeys(requests, 0.02), progress)

    def measure(self, repeats: int = 5) -> dict:
        """Interleaved repetitions.

        Returns
        -------
        The object of `comparison.assemble` with metrics `gops` (geometric mean over the shapes at M = rows), `gb_s`
        (weight bytes, scales counted, of one product of each shape over their time at M = 1, weights out of memory) and
        `bandwidth_fraction` (of reading alone, measured in the same round); `shapes` {shape: {arm: {gops, gb_s,
        hot_gb_s, seconds, stream_seconds, hot_seconds: summary}}} and `read_gb_s`.
        """
        at_least_one(repeats=repeats)
        load, rounds, reads = provenance.load(), {arm: [] for arm in self._arms}, []
        total = repeats * len(self._crew.names)
        done = 0
        for _, order in rotations(self._crew.names, repeats):
            for name in order:
                if name == READ:
                    reads.append((self._crew.ask(READ, "read") or {}).get("gb_s"))
                else:
                    found = {what: self._crew.ask(name, what) for what in ("multiply", "stream", "hot")}
                    if None not in found.values():
                        rounds[name].append({what: reply["seconds"] for what, reply in found.items()})
                done += 1
                self._progress(done, total, name)
        reads = [r for r in reads if r]
        missing = {arm: reason for arm, reason in self._crew.missing.items() if arm != READ}
        return comparison.assemble(
            {arm: self._metrics(arm, found, reads) for arm, found in rounds.items()},
            ("gops", "gb_s", "bandwidth_fraction"),
            missing,
            provenance.collect(models=self._models)
            | {
                "threads": {"workers": self.threads},
                "workload": {"rows": self._rows, "repeats": repeats, "shapes": dict(self._shapes)},
                "copies": {arm: self._crew.facts[arm]["copies"] for arm in self._arms if arm in self._crew.facts},
                "last_level_cache_bytes": self._llc,
                "load_before": load,
                "load_after": provenance.load(),
            },
            shapes=self._by_shape(rounds),
            read_gb_s=timing.summary(reads) if reads else None,
        )

    def _metrics(self, arm: str, rounds: list[dict], reads: list[float]) -> dict[str, list[float]]:
        if not rounds:
            return {}
        size = sum(self._crew.facts[arm]["bytes"])
        gops = [timing.geometric_mean(self._gops(found["multiply"])) for found in rounds]
        gb_s = [size / sum(found["stream"]) / 1e9 for found in rounds]
        return {"gops": gops, "gb_s": gb_s, "bandwidth_fraction": [g / r for g, r in zip(gb_s, reads, strict=False)]}

    def _gops(self, seconds: list[float]) -> list[float]:
        return [2e-9 * self._rows * n * k / s for (n, k), s in zip(self._shapes.values(), seconds, strict=True)]

    def _by_shape(self, rounds: dict[str, list[dict]]) -> dict:
        shapes = {}
        for i, (shape, (n, k)) in enumerate(self._shapes.items()):
            shapes[f"{shape} {k}x{n}"] = {
                arm: {
                    "gops": timing.summary(2e-9 * self._rows * n * k / r["multiply"][i] for r in found),
                    "gb_s": timing.summary(self._crew.facts[arm]["bytes"][i] / r["stream"][i] / 1e9 for r in found),
                    "hot_gb_s": timing.summary(self._crew.facts[arm]["bytes"][i] / r["hot"][i] / 1e9 for r in found),
                    "seconds": timing.summary(r["multiply"][i] for r in found),
                    "stream_seconds": timing.summary(r["stream"][i] for r in found),
                    "hot_seconds": timing.summary(r["hot"][i] for r in found),
                }
                for arm, found in rounds.items()
                if found
            }
        return shapes

    def close(self) -> None:
        self._crew.close()

    def __enter__(self) -> "GemmBench":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def _shapes_of(model: str) -> tuple[dict[str, tuple[int, int]], list]:
    """Products of one block of a model, those with a common input as one, and the model."""
    from cachequant.assets import models

    asset = models.resolve(model)
    c = asset.config
    up = 2 * c.ffn if c.family == "llama" else c.ffn
    shapes = {
        "qkv": (c.attention_width + 2 * c.kv_width, c.width),
        "o": (c.width, c.attention_width),
        "up": (up, c.width),
        "down": (c.width, c.ffn),
    }
    return shapes, [asset]
