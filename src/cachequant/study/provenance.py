"""Where a result comes from: code, versions, processor, threads, models, texts. No host, user or folder names."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from cachequant.errors import ResultError

PACKAGES = ("cachequant", "numpy", "numba", "llvmlite", "safetensors", "tokenizers", "gguf", "datasets", "torch")
PACKAGES += ("transformers", "ctranslate2", "llama-cpp-python", "optimum-quanto", "hqq", "matplotlib", "papermill")
INSTRUCTIONS = ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512vnni", "avx512bf16", "amx-int8")
INSTRUCTIONS += ("neon", "dotprod", "i8mm", "sve")


def collect(models: Iterable[Any] = (), texts: Iterable[Any] = ()) -> dict[str, Any]:
    """Describes this process and this machine.

    Parameters
    ----------
    models, texts : iterables
        What was measured: objects with `name` and `sha256` (a model may have a `fingerprint` instead; one with random
        weights says so by `random`), or mappings with these keys.

    Returns
    -------
    dict
        `versions`, `cpu` {model, instruction_sets, cores, logical}, `threads` {numba, torch} of those that are
        imported, `ram_bytes`, `os`, `models` and `texts` as lists of {name, sha256[, random]}.
    """
    return {
        "versions": versions(),
        "cpu": cpu(),
        "threads": threads(),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "models": [identity(m, "model") for m in models],
        "texts": [identity(t, "text") for t in texts],
    }


def versions() -> dict[str, str]:
    """Python and those of PACKAGES that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


@cache
def _cpu() -> dict[str, Any]:
    import psutil
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return {
        "model": _cpu_model(),
        "instruction_sets": [name for name in INSTRUCTIONS if features.get(name)],
        "cores": psutil.cpu_count(logical=False),
        "logical": psutil.cpu_count(logical=True),
    }


def cpu() -> dict[str, Any]:
    """Model name, the instruction sets that matter here, physical and logical cores."""
    return dict(_cpu())


def threads() -> dict[str, int]:
    """Threads of each engine that this process has imported."""
    found = {}
    if "numba" in sys.modules:
        found["numba"] = sys.modules["numba"].get_num_threads()
    if "torch" in sys.modules:
        found["torch"] = sys.modules["torch"].get_num_threads()
    return found


def load() -> list[float]:
    """Load average over 1, 5 and 15 minutes."""
    return [round(x, 2) for x in os.getloadavg()]


def commit(folder: Path) -> tuple[str | None, bool | None]:
    """Commit of the clone and whether anything that computes differs from it; (None, None) outside a clone."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", "src", "notebooks", "requirements.lock", "pyproject.toml")
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return head, bool(changed)


def identity(thing: Any, kind: str) -> dict[str, Any]:
    """{name, sha256[, random]} of a model or text."""
    get = thing.get if isinstance(thing, Mapping) else lambda key: getattr(thing, key, None)
    found = {"name": get("name"), "sha256": get("sha256") or get("fingerprint")}
    for key, value in found.items():
        if not isinstance(value, str) or not value:
            raise ResultError(f"{kind} {thing!r} has no {key}; allowed: an object or mapping with name and sha256")
    return found | ({"random": True} if get("random") else {})


def _cpu_model() -> str:
    if sys.platform == "darwin":
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        ).stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()
