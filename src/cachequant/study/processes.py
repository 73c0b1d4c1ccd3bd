"""The parent's side of a worker process: start it, ask it, stop it."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time

from cachequant.errors import CachequantError

QUIET = {"TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
# Libraries keep their own waiting policy, as users have it: idle OpenMP threads sleep after some milliseconds. Making
# them sleep at once doubled the time of a small parallel region (14 to 31 us on 2 cores), so the parent waits instead.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
OPEN_SECONDS, ASK_SECONDS = 900.0, 900.0  # the first use of a kernel compiles it


class WorkerError(CachequantError):
    """A worker that reported an error, died, or did not answer in time."""


def environment(threads: int) -> dict[str, str]:
    """Environment of a worker: the same number of threads for every pool, and nobody's waiting policy changed."""
    inherited = {key: value for key, value in os.environ.items() if key not in WAITING}
    return inherited | QUIET | {name: str(threads) for name in POOLS}


class Worker:
    """One worker process.

    Parameters
    ----------
    threads : of every thread pool in it.
    settle_seconds : how long its threads may spin after a reply.
    """

    def __init__(self, threads: int, settle_seconds: float = 0.0):
        self._log = tempfile.TemporaryFile()
        self._settle = settle_seconds
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cachequant.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(threads),
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, do: str, **request) -> None:
        """Send a request without waiting."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        except BrokenPipeError:
            raise WorkerError(f"the worker ended early: {self._last_words()}") from None

    def receive(self, seconds: float = ASK_SECONDS) -> dict:
        """Wait for the reply, then until the worker's threads are asleep.

        Raises
        ------
        WorkerError : it failed, died, or took longer than `seconds`; in the last two cases it is gone.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close(patience=0.0)
                raise WorkerError(f"no answer within {seconds:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 20)
            if not piece:
                raise WorkerError(f"the worker ended early: {self._last_words()}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        time.sleep(self._settle)
        if not reply.pop("ok"):
            raise WorkerError(reply["error"])
        return reply

    def ask(self, do: str, seconds: float = ASK_SECONDS, **request) -> dict:
        """`send` and `receive`."""
        self.send(do, **request)
        return self.receive(seconds)

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def close(self, patience: float = 5.0) -> None:
        """Ask it to end by closing its input; kill it if it does not within `patience` seconds."""
        if self._process.poll() is None:
            try:
                self._process.stdin.close()
                self._process.wait(patience)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            stream.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception) -> None:
        self.close()
