"""Computes what is out of date in a set of results, one notebook after the other, and says how long each took."""

import sys
import threading
import time
from contextlib import contextmanager

from cachequant.study import layout, peers, profiles, results, runner

QUICK_LIMIT = 20.0  # minutes on 2 cores that profile `quick` may take, without the notebook on other engines


def compute(set_name: str, profile: str, only: list[str] | None = None) -> None:
    """Runs the notebooks whose result in the set is missing or was made from other inputs.

    Every notebook's parameters are checked before the first one runs. The first failure ends it; what was computed
    before stays. The notebook on other people's engines is left out where these are not installed.
    """
    names = [layout.notebook(n).stem for n in only] if only else list(layout.notebooks())
    plans = [runner.plan(name, profile) for name in names]
    folder = layout.set_folder(set_name)
    for i, todo in enumerate(plans, 1):
        label, budget = f"[{i}/{len(plans)}] {todo.name}", _budget(todo.profile, todo.name)
        if runner.up_to_date(todo, set_name):
            print(f"{label}: up to date", flush=True)
            continue
        if todo.name in peers.NOTEBOOKS and (lacking := peers.missing()):
            print(f"{label}: skipped: peers are not installed (make peers); missing: {', '.join(lacking)}", flush=True)
            continue
        print(f"{label}: computing, profile {profile}, budget {budget}", flush=True)
        with _clock(label):
            done = runner.execute(todo, folder, set_name)
        print(f"{label}: done in {minutes(done.provenance['seconds'])}", flush=True)


def report(set_name: str, profile: str) -> str:
    """Durations of the results in a set beside their budgets, and their sum."""
    chosen = profiles.read(profile)
    lines, total = [f"{'notebook':<26}{'budget':>10}{'duration':>12}"], 0.0
    for name in layout.notebooks():
        if results.path(name, set_name).is_file():
            seconds = results.read(name, set_name).provenance["seconds"]
            total += seconds
            lines.append(f"{name:<26}{_budget(chosen, name):>10}{minutes(seconds):>12}")
    limit = f"{QUICK_LIMIT:.0f} min" if profile == "quick" else ""
    return "\n".join([*lines, f"{'sum':<26}{limit:>10}{minutes(total):>12}"])


def minutes(seconds: float) -> str:
    """`2.5 min`, or `14 s` below a minute."""
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _budget(profile: profiles.Profile, name: str) -> str:
    return minutes(60 * profile.budgets[name]) if name in profile.budgets else "none"


@contextmanager
def _clock(label: str):
    """On a terminal, the time that has passed, once a second."""
    if not sys.stdout.isatty():
        yield
        return
    stop, start = threading.Event(), time.monotonic()

    def tick():
        while not stop.wait(1):
            passed = int(time.monotonic() - start)
            print(f"\r{label}: {passed // 60}:{passed % 60:02d} ", end="", flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        print("\r\033[K", end="", flush=True)
