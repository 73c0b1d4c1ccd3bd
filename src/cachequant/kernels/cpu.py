"""What this CPU is: model, cores, caches, instruction sets. Standard library only, so that anything may import it."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

_SYS = Path("/sys/devices/system/cpu")


@cache
def features() -> frozenset[str]:
    """Instruction sets as LLVM names them ("avx2", "avx512vnni", "dotprod")."""
    from llvmlite import binding

    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


@cache
def architecture() -> str:
    """LLVM's name of the microarchitecture, such as "znver3"."""
    from llvmlite import binding

    return binding.get_host_cpu_name()


@cache
def model() -> str:
    """Marketing name of the CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def cpus() -> list[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Physical cores that this process may run on: affinity and the container's CPU quota counted, siblings not."""
    siblings = {_read(_SYS / f"cpu{i}/topology/thread_siblings_list") or str(i) for i in cpus()}
    cores = len(siblings)
    if platform.system() == "Darwin":
        cores = int(_sysctl("hw.physicalcpu") or cores)
    quota, _, period = (_read(Path("/sys/fs/cgroup/cpu.max")) or "max").partition(" ")
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


@cache
def cache_bytes() -> dict[str, int]:
    """Bytes of the data caches that one core sees: {"L1": ..., "L2": ..., "L3": ...}, those that are known."""
    found = {}
    for index in sorted((_SYS / "cpu0/cache").glob("index*")):
        if _read(index / "type") != "Instruction":
            size = _read(index / "size") or "0K"
            found[f"L{_read(index / 'level')}"] = int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]
    if not found:
        sizes = {"L1": "hw.l1dcachesize", "L2": "hw.l2cachesize", "L3": "hw.l3cachesize"}
        found = {level: int(size) for level, name in sizes.items() if (size := _sysctl(name))}
    return found


def last_level_bytes() -> int:
    """Bytes of the last-level cache; 32 MiB if the system does not tell."""
    return max(cache_bytes().values(), default=32 << 20)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _sysctl(name: str) -> str | None:
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None
