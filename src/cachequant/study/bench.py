"""The benchmarks of the command line and the notebooks; the modules `*_bench` say how they measure."""

from collections.abc import Sequence

from cachequant.study import arms as registry
from cachequant.study.attention_bench import attention
from cachequant.study.crew import Progress, silent
from cachequant.study.decode_bench import DecodeBench
from cachequant.study.gemm_bench import GEMM_ARMS, ROWS, GemmBench
from cachequant.study.prefill_bench import prefill
from cachequant.study.prefix_bench import prefix
from cachequant.study.transformers_bench import transformers
from cachequant.study.workloads import Workload

__all__ = ["attention", "decode", "gemm", "prefill", "prefix", "transformers"]


def decode(
    model: str = "smollm2-135m",
    arms: Sequence[str] | None = None,
    prompt: int | Workload = 270,
    new: int | None = None,
    repeats: int = 5,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Prefill and decode speed of several engines, interleaved; the object is described in `DecodeBench.measure`.

    Raises
    ------
    InputError, AssetError : unknown arms or models, lengths that do not fit; before anything runs.
    """
    with DecodeBench(model, arms or registry.DEFAULT, threads, progress) as bench:
        return bench.measure(prompt, new, repeats)


def gemm(
    arms: Sequence[str] | None = None,
    model: str | None = None,
    rows: int = ROWS,
    repeats: int = 5,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Speed of the matrix products at the shapes of one model, or of GPT-2 small and SmolLM2 together; see `GemmBench`.

    Raises
    ------
    InputError, AssetError : unknown arms or models; before anything runs.
    """
    with GemmBench(arms or GEMM_ARMS, model, rows, threads, progress) as bench:
        return bench.measure(repeats)
