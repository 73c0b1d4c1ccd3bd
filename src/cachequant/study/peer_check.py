"""Whether a peer is as fast beside us as it is alone: the arms of a benchmark against a script without our code."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from cachequant.errors import InputError
from cachequant.study import alone
from cachequant.study.processes import WorkerError, environment

CHECKED = ("transformers-fp32", "torch-int8")
LIMIT = 0.10


def check(bench, prompt: int, new: int, repeats: int = 5) -> dict:
    """Run each peer of a decode benchmark alone and compare it with its median beside the others.

    Parameters
    ----------
    bench : a `DecodeBench`; its workers idle meanwhile.
    prompt, new, repeats : as in `DecodeBench.measure`; `new` is at least 2.

    Returns
    -------
    {arm: {metric: {"beside", "alone", "difference" (alone / beside - 1), "ok" (within 10 %)}}}.
    """
    from cachequant.assets import materialize

    if new < 2:
        raise InputError(f"new tokens {new!r} have to be at least 2")
    beside = bench.measure(prompt, new, repeats)
    ids, found = bench.prompt_ids(prompt), {}
    with tempfile.TemporaryDirectory(prefix="cachequant-") as parent:
        folder = materialize.materialize(bench.asset, Path(parent) / "model")
        for arm in (a for a in CHECKED if a in beside["arms"]):
            how = {"folder": str(folder), "arm": arm, "ids": ids, "new": new, "repeats": repeats}
            speeds = run(how | {"threads": bench.threads})
            found[arm] = {metric: _compared(beside["arms"][arm][metric]["median"], v) for metric, v in speeds.items()}
    return found


def run(request: dict) -> dict:
    """{prefill_tok_s, decode_tok_s} of `alone.py` in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-P", alone.__file__],
        input=json.dumps(request),
        env=environment(request["threads"]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkerError(f"{request['arm']} alone failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def _compared(beside: float, by_itself: float) -> dict:
    difference = by_itself / beside - 1
    return {"beside": beside, "alone": by_itself, "difference": difference, "ok": abs(difference) <= LIMIT}
