"""What this machine can do at most: the roofs of the roofline model, read bandwidth and arithmetic.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009. The sloping roof is
reading memory with nothing else to do; the flat ones are multiplying registers with nothing else to do, and lower, what
one large matrix product reaches, ours and the vendor library's.
"""

from cachequant.study import provenance, timing
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, rotations, silent

SHAPE, ROWS = (2048, 1024), 512  # (N, K) and M of the large product
BUFFER_BYTES = 256 << 20  # at least this much is read
PEAKS = ("fp32", "int8", "torch-fp32", "torch-int8")
REGISTERS = "registers"  # name of the worker that multiplies registers
KINDS = ("fp32", "int8")  # what it multiplies


def measure(threads: int | None = None, repeats: int = 7, progress: Progress = silent) -> dict:
    """Read bandwidth with 1, 2, 4, ... threads, arithmetic peak and GEMM peak; in processes of their own, interleaved.

    Parameters
    ----------
    threads : at most; None is one a physical core.
    repeats : rounds.

    Returns
    -------
    `read_gb_s` {threads: summary}, `register_gops` {"fp32", "int8": summary} of multiplying registers, `gemm_gops`
    {arm: summary} for one large product, `threads`,
    `last_level_cache_bytes`, `read_buffer_bytes`, `missing` {arm: reason}, `load_before`.
    """
    from cachequant.kernels import cpu

    threads = cpu.physical_cores() if threads is None else threads
    at_least_one(threads=threads, repeats=repeats)
    llc, load = cpu.last_level_bytes(), provenance.load()
    size = max(4 * llc, BUFFER_BYTES)
    readers = {f"read-{n}": n for n in counts(threads)}
    requests = {name: {"kind": "read", "threads": n, "size": size} for name, n in readers.items()}
    requests |= {arm: product(arm, threads) for arm in PEAKS}
    requests[REGISTERS] = {"kind": "peak", "threads": threads}
    found = {name: [] for name in requests}
    with Crew(requests, threads, dict.fromkeys(requests, 0.02), progress) as crew:
        for r, order in rotations(crew.names, repeats):
            for name in order:
                if (figure := _ask(crew, name, name in readers)) is not None:
                    found[name].append(figure)
            progress(r + 1, repeats, "measuring the machine")
        missing = dict(crew.missing)
    return {
        "threads": threads,
        "last_level_cache_bytes": llc,
        "read_buffer_bytes": size,
        "read_gb_s": {str(n): timing.summary(found[name]) for name, n in readers.items() if found[name]},
        "register_gops": {
            kind: timing.summary(r[kind] for r in found[REGISTERS]) for kind in KINDS if found[REGISTERS]
        },
        "gemm_gops": {arm: timing.summary(found[arm]) for arm in PEAKS if found[arm]},
        "gemm_shape": {"rows": ROWS, "n": SHAPE[0], "k": SHAPE[1]},
        "missing": missing,
        "load_before": load,
    }


def product(arm: str, threads: int) -> dict:
    """What a worker is asked to open for the large product of an arm; it then answers `multiply`."""
    return {"kind": "gemm", "arm": arm, "threads": threads, "shapes": [SHAPE], "rows": ROWS, "stream_bytes": 0}


def gops(reply: dict) -> float:
    """Billions of operations a second of the large product, from the answer to `multiply`."""
    return 2e-9 * ROWS * SHAPE[0] * SHAPE[1] / reply["seconds"][0]


def _ask(crew: Crew, name: str, reader: bool):
    """GB/s of a reader, {kind: GOP/s} of registers, GOP/s of a product; None if it failed."""
    if reader:
        reply = crew.ask(name, "read")
        return reply and reply["gb_s"]
    if name == REGISTERS:
        replies = {kind: crew.ask(name, "multiply", kind=kind) for kind in KINDS}
        return None if None in replies.values() else {kind: reply["gops"] for kind, reply in replies.items()}
    reply = crew.ask(name, "multiply")
    return reply and gops(reply)


def counts(threads: int) -> list[int]:
    """1, 2, 4, ... and `threads`."""
    return sorted({threads, *(2**i for i in range(threads.bit_length()))})
