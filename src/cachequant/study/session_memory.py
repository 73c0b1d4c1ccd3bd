"""Memory that a long session takes, measured: the peak of a process above what it had after a short one."""

import gc
import sys
from pathlib import Path

from cachequant.errors import InputError
from cachequant.study.processes import Worker

SHORT, LONG, CHUNK = 64, 8128, 256


class SessionWork:
    """A model in a process of its own, which runs a short session and then a long one.

    Parameters
    ----------
    model, scheme, kv, threads : what runs.
    """

    def __init__(self, model: str, scheme: str, kv: str, threads: int):
        import cachequant

        self._model = cachequant.load(model, scheme, threads=threads, kv=kv)

    def facts(self) -> dict:
        return {"basis_bytes": self._model.pages.nbytes}

    def measure(self, ids: list[int], short: int, chunk: int) -> dict:
        """Bytes: resident after a session of the first `short` ids, at the peak of one of all of them, of its pages."""
        from cachequant.study.worker import memory

        self._session(ids[:short], chunk)
        gc.collect()
        before = memory()["rss_bytes"]
        peaks = _forget_peak()
        pages = self._session(ids, chunk)
        peak = _peak() if peaks else memory()["peak_rss_bytes"]
        return {"before_bytes": before, "peak_bytes": peak, "page_bytes": pages, "whole_process": not peaks}

    def _session(self, ids: list[int], chunk: int) -> int:
        with self._model.session() as session:
            for i in range(0, len(ids), chunk):
                session.extend(ids[i : i + chunk], logits="none")
            session.extend(ids[:1])  # one token is decoded
            return session.nbytes


def _forget_peak() -> bool:
    """Let the kernel count the peak from now on; False where it does not do that."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _peak() -> int:
    """Peak of the resident bytes since `_forget_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def measure(
    kv: str,
    model: str = "smollm2-135m",
    scheme: str = "int8",
    tokens: int = LONG,
    short: int = SHORT,
    chunk: int = CHUNK,
    threads: int | None = None,
) -> dict:
    """Peak memory of a long session above the same process after a short one.

    Parameters
    ----------
    kv, scheme, model : what runs, in a fresh process.
    tokens, short : of the two sessions; one more token is decoded in each.
    chunk : tokens that are prefilled at once.

    Returns
    -------
    {"kv", "tokens", "short", "chunk", "bytes" (the peak above, the calibrated basis counted), "basis_bytes",
    "page_bytes" (of the long session), "before_bytes", "peak_bytes", "whole_process" (true where the system cannot
    count a peak anew: then it is that of the whole process, loading included)}.

    Raises
    ------
    InputError : lengths that do not fit.
    """
    from cachequant.assets import models
    from cachequant.kernels import cpu
    from cachequant.study import workloads

    asset = models.resolve(model)
    if not 0 < short <= tokens < asset.config.context or chunk < 1:
        raise InputError(
            f"sessions of {short} and {tokens} tokens in chunks of {chunk}: give 1 <= short <= tokens < "
            f"{asset.config.context}, and a chunk of at least 1"
        )
    ids = workloads.prompt_ids(tokens, asset.config.vocab, asset.tokenizer)
    threads = cpu.physical_cores() if threads is None else threads
    with Worker(threads) as worker:
        opened = worker.ask("open", kind="session", model=model, scheme=scheme, kv=kv, threads=threads)
        found = worker.ask("measure", ids=ids, short=short, chunk=chunk)
    above = found["peak_bytes"] - found["before_bytes"] + opened["basis_bytes"]
    asked = {"kv": kv, "tokens": tokens, "short": short, "chunk": chunk}
    return {**asked, "bytes": above, "basis_bytes": opened["basis_bytes"], **found}
