"""Resident memory of this process, now and at its peak.

On Linux the peak is that of this program's own pages (VmHWM of /proc/self/status), which `reset_peak` starts again.
`getrusage` is not used there: its peak includes what the parent had resident when it started this process.
"""

import os
import resource
import sys
from pathlib import Path

import psutil

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def memory() -> dict[str, int]:
    """{rss_bytes, peak_rss_bytes}."""
    now = psutil.Process(os.getpid()).memory_info().rss
    if _STATUS.exists():
        peak = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return {"rss_bytes": now, "peak_rss_bytes": max(now, 1024 * int(peak.split()[1]))}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"rss_bytes": now, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


def reset_peak() -> bool:
    """Let the peak start again from what is resident now; False where the system cannot."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True
