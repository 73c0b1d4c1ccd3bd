"""What this machine can do at most: the roofs of the roofline model, read bandwidth and GEMM peak.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009. The sloping roof is
reading memory with nothing else to do; the flat ones are one large matrix product, ours and the vendor library's.
"""

from cachequant.study import provenance, timing
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, rotations, silent

SHAPE, ROWS = (2048, 1024), 512  # (N, K) and M of the large product
BUFFER_BYTES = 256 << 20  # at least this much is read
PEAKS = ("fp32", "int8", "torch-fp32", "torch-int8")


def measure(threads: int | None = None, repeats: int = 7, progress: Progress = silent) -> dict:
    """Read bandwidth with 1, 2, 4, ... threads, and GEMM peak; each in its own process, interleaved.

    Parameters
    ----------
    threads : at most; None is one a physical core.
    repeats : rounds.

    Returns
    -------
    `read_gb_s` {threads: summary}, `gemm_gops` {arm: summary} for one large product, `threads`,
    `last_level_cache_bytes`, `read_buffer_bytes`, `missing` {arm: reason}, `load_before`.
    """
    from cachequant.kernels import cpu

    threads = cpu.physical_cores() if threads is None else threads
    at_least_one(threads=threads, repeats=repeats)
    llc, load = cpu.last_level_bytes(), provenance.load()
    size = max(4 * llc, BUFFER_BYTES)
    readers = {f"read-{n}": n for n in _counts(threads)}
    requests = {name: {"kind": "read", "threads": n, "size": size} for name, n in readers.items()}
    gemm = {"kind": "gemm", "threads": threads, "shapes": [SHAPE], "rows": ROWS, "stream_bytes": 0}
    requests |= {arm: {**gemm, "arm": arm} for arm in PEAKS}
    found = {name: [] for name in requests}
    with Crew(requests, threads, dict.fromkeys(requests, 0.02), progress) as crew:
        for r, order in rotations(crew.names, repeats):
            for name in order:
                reply = crew.ask(name, "read" if name in readers else "multiply")
                if reply is not None:
                    operations = 2e-9 * ROWS * SHAPE[0] * SHAPE[1]
                    found[name].append(reply["gb_s"] if name in readers else operations / reply["seconds"][0])
            progress(r + 1, repeats, "measuring the machine")
        missing = dict(crew.missing)
    return {
        "threads": threads,
        "last_level_cache_bytes": llc,
        "read_buffer_bytes": size,
        "read_gb_s": {str(n): timing.summary(found[name]) for name, n in readers.items() if found[name]},
        "gemm_gops": {arm: timing.summary(found[arm]) for arm in PEAKS if found[arm]},
        "gemm_shape": {"rows": ROWS, "n": SHAPE[0], "k": SHAPE[1]},
        "missing": missing,
        "load_before": load,
    }


def _counts(threads: int) -> list[int]:
    """1, 2, 4, ... and `threads`."""
    return sorted({threads, *(2**i for i in range(threads.bit_length()))})
