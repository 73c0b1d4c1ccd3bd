"""Installs the engines and caches that the study compares with, as pinned; llama.cpp is compiled for this processor.

Run by `make peers`. Nothing else in the environment changes: what these packages need is in requirements.lock.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# everything that this processor can do, llama.cpp's own kernels instead of a generic BLAS, and text only
FLAGS = "-DGGML_NATIVE=ON -DGGML_BLAS=OFF -DGGML_OPENMP=ON -DLLAVA_BUILD=OFF"
STEP = re.compile(r"\[(\d+)/(\d+)\]")
PIP = (
    "-m",
    "pip",
    "install",
    "--verbose",
    "--disable-pip-version-check",
    "--no-deps",
    "--no-binary",
    "llama-cpp-python",
)


def install(command: list[str]) -> int:
    """Run a build, show its steps as they are done, and its last lines if it fails; returns its exit code."""
    with tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="peers-", delete=False) as log:
        environment = os.environ | {"CMAKE_ARGS": FLAGS}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            follow(process.stdout, log)
        if process.returncode:
            log.seek(0)
            tail = "".join(log.readlines()[-30:])
            print(f"{tail}error: the engines were not installed; the whole output is in {log.name}", file=sys.stderr)
    if not process.returncode:
        Path(log.name).unlink()
    return process.returncode


def follow(lines, log) -> None:
    """Copy lines to a log and show the compiler's progress: in place on a terminal, every tenth of it elsewhere."""
    shown = -1
    for line in lines:
        log.write(line)
        found = STEP.search(line)
        if not found:
            continue
        done, total = map(int, found.groups())
        if sys.stdout.isatty():
            print(f"\rcompiling llama.cpp: {done} of {total} ", end="\n" if done == total else "", flush=True)
        elif 10 * done // total > shown:
            shown = 10 * done // total
            print(f"compiling llama.cpp: {done} of {total}", flush=True)


if __name__ == "__main__":
    print("fetching CTranslate2, optimum-quanto and HQQ", flush=True)
    print("compiling llama.cpp for this processor (10 to 20 minutes on 2 cores)", flush=True)
    sys.exit(install([sys.executable, *PIP, "-r", str(ROOT / "requirements-peers.lock")]))
