"""What saving, loading and branching a session costs."""

import tempfile
import time
from pathlib import Path

import numpy as np

from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.kv.pages import PAGE
from cachequant.kv.session import Session
from cachequant.study import timing
from cachequant.study.crew import Progress, silent
from cachequant.study.workloads import prompt_ids


def measure(
    model: Model, tokens: int = 5_000, repeats: int = 5, folder: Path | None = None, progress: Progress = silent
) -> dict:
    """Save, load and branch one session of a prompt of our own.

    Parameters
    ----------
    tokens : of the session, less than the context.
    folder : for the file; None is a temporary one.

    Returns
    -------
    {"tokens", "kv", "page_bytes" (of the pages held), "file_bytes", "size_ratio" (file over pages), "prefill_seconds"
    (what loading saves), "save_seconds", "load_seconds", "next_seconds" (of the token after it), "first_seconds" (load
    and next), "forks": [{at, milliseconds, copied (pages that the first step acquires), deferred (tokens that are
    computed again with it), step_seconds}], "identical" (the restored session and all branches give the bits of a
    session that was never saved)}; times are {median, low, high, values}.

    Raises
    ------
    InputError : tokens that leave no room for another one in the context.
    """
    if not 1 <= tokens < model.config.context:
        raise InputError(f"tokens {tokens!r}: allowed are 1 to {model.config.context - 1}")
    ids = prompt_ids(tokens, model.config.vocab, model.tokenizer)
    with model.session() as session, tempfile.TemporaryDirectory(dir=folder) as where:
        clock = time.perf_counter()
        session.extend(ids, "none")
        prefill, path = time.perf_counter() - clock, Path(where) / "session.safetensors"
        with session.fork() as branch:
            want = branch.extend(ids[:1])
        saves, loads, nexts, same = [], [], [], True
        for r in range(repeats):
            clock = time.perf_counter()
            session.save(path)
            saves.append(time.perf_counter() - clock)
            clock = time.perf_counter()
            restored = model.load_session(path)
            loads.append(time.perf_counter() - clock)
            with restored:
                same &= np.array_equal(restored.extend(ids[:1]), want)
            nexts.append(time.perf_counter() - clock - loads[-1])
            progress(r + 1, repeats, "saving and loading")
        places = sorted({tokens, tokens - 1, tokens // 2 // PAGE * PAGE, tokens // 2, min(PAGE // 2, tokens)})
        forks = [_forked(session, ids, at, repeats) for at in places]
        file_bytes, held = path.stat().st_size, session.nbytes
    return {
        "tokens": tokens,
        "kv": model.kv.name,
        "page_bytes": held,
        "file_bytes": file_bytes,
        "size_ratio": file_bytes / held,
        "prefill_seconds": prefill,
        "save_seconds": timing.summary(saves),
        "load_seconds": timing.summary(loads),
        "next_seconds": timing.summary(nexts),
        "first_seconds": timing.summary(a + b for a, b in zip(loads, nexts, strict=True)),
        "forks": forks,
        "identical": bool(same and all(fork.pop("identical") for fork in forks)),
    }


def _forked(session: Session, ids: list[int], at: int, repeats: int) -> dict:
    """Branches at a token, and the first step of each; the bits are compared with those of a branch made page by page,
    from the pages before the cut and the tokens after them."""
    times, steps = [], []
    with session.fork(at // PAGE * PAGE) as plain:
        want = plain.extend([*ids[plain.position : at], ids[0]])
    same = True
    for _ in range(repeats):
        clock = time.perf_counter()
        branch = session.fork(at)
        times.append(time.perf_counter() - clock)
        with branch:
            deferred, before = branch.position - branch.stored, set(branch.pages)
            clock = time.perf_counter()
            got = branch.extend(ids[:1])
            steps.append(time.perf_counter() - clock)
            copied = len(set(branch.pages) - before)
            same &= np.array_equal(got, want)
    return {
        "at": at,
        "milliseconds": timing.summary(1e3 * t for t in times),
        "copied": copied,
        "deferred": deferred,
        "step_seconds": timing.summary(steps),
        "identical": bool(same),
    }
