"""Says below the title of every page whose numbers these are: this machine's, a rerun's, or the published reference."""

import re
from pathlib import Path

from cachequant.study import pages, results


def add(app, docname, source):
    """Puts the note below the first heading of a page that reads results."""
    if not Path(app.env.doc2path(docname)).suffix == ".md":
        return
    names = pages.reads(source[0])
    if names:
        heading = re.search(r"^# .+$", source[0], re.MULTILINE)
        source[0] = source[0][: heading.end()] + f"\n\n{note(names)}\n" + source[0][heading.end() :]


def note(names: list[str]) -> str:
    """One line a result in a folded note whose title tells the sets apart."""
    found = [results.load(name) for name in names]
    shown = {r.set for r in found}
    wanted = results.sets()[0]
    title = {"local": "Measured on this machine", "reference": "The published reference run"}
    head = "; ".join(title.get(s, f"Rerun {s}") for s in sorted(shown))
    if wanted != "reference" and "reference" in shown and results.present(wanted):
        head += f" (results/{wanted} has no {', '.join(r.name for r in found if r.set == 'reference')})"
    if "reference" not in shown and any(r.provenance["profile"] == "quick" for r in found):
        head += ", profile quick: smaller samples than the reference's"
    if any(r.provenance["profile"] == "smoke" for r in found):
        head += "; profile smoke, which only checks that everything runs: its numbers mean nothing"
    lines = [f"- {line(r)}" for r in found]
    return "\n".join([f":::{{admonition}} {head}", ":class: note dropdown", "", *lines, ":::"])


def line(result) -> str:
    """Machine, profile, time, commit, and the parameters that differ from the reference's."""
    p = result.provenance
    said = f"`{result.name}`: {result.machine}; profile {p['profile']}; {p['start'][:10]}; commit {result.commit}"
    other = results.both(result.name)[1]
    if other:
        differ = [
            f"{k} {v} (reference {other.parameters[k]})"
            for k, v in result.parameters.items()
            if k in other.parameters and v != other.parameters[k]
        ]
        said += f". Reference: {other.machine}; {other.provenance['start'][:10]}"
        said += f". Parameters that differ: {'; '.join(differ)}" if differ else ""
    return said


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", add)
    return {"parallel_read_safe": False}
