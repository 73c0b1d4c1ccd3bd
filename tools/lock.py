"""Writes requirements.lock and environment.yml: pins of what this environment holds and the project needs.

Run by `make lock` after a deliberate upgrade. Only what the extras `book` and `test` need, directly or through others,
is pinned, so that an accidental install does not get in.
"""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("book", "test")
# needed on another system than the one that writes the lock: ipykernel and IPython on macOS
ELSEWHERE = ['appnope==0.1.4; sys_platform == "darwin"']
HEAD = "# Exact versions for Python 3.11 and newer on Linux and macOS, written by `make lock`.\n"


def pins() -> list[str]:
    """`name==version` of every distribution that the project needs, sorted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    wanted = project["dependencies"] + [r for extra in EXTRAS for r in project["optional-dependencies"][extra]]
    waiting = [Requirement(r) for r in wanted]
    found, seen = {}, set()
    while waiting:
        need = waiting.pop()
        key = (canonicalize_name(need.name), frozenset(need.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = metadata.distribution(need.name)
        found[key[0]] = f"{key[0]}=={distribution.version.partition('+')[0]}"
        for text in distribution.requires or []:
            further = Requirement(text)
            marked = further.marker is None or any(further.marker.evaluate({"extra": e}) for e in (*need.extras, ""))
            if marked:
                waiting.append(further)
    return sorted([*found.values(), *ELSEWHERE])


def environment(lines: list[str]) -> str:
    """The conda environment with the same pins; the package itself is installed by hand, as README says."""
    items = "\n".join(f"      - {line}" if ";" not in line else f"      - '{line}'" for line in lines)
    return (
        f"{HEAD}name: cachequant\nchannels: [conda-forge]\ndependencies:\n  - python>=3.11\n  - pip\n  - pip:\n"
        + items
        + "\n"
    )


if __name__ == "__main__":
    lines = pins()
    (ROOT / "requirements.lock").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf8")
    (ROOT / "environment.yml").write_text(environment(lines), encoding="utf8")
    print(f"{len(lines)} pins")
