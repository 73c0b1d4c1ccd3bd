"""Rebuilds a page when a result that it reads, code that it runs, or a page that it glues from has changed.

Sphinx compares a page's own source, and what it includes, with the last build; it follows none of these.
"""

import hashlib
from pathlib import Path

from myst_nb.ext.glue.utils import PendingGlueReference

from cachequant.study import pages, results, sources


def digest(page: Path) -> str:
    """Of all results that are shown or stand beside them, and of the library's modules that the page's code uses."""
    text = page.read_text(encoding="utf8") if page.suffix == ".md" else ""
    program = pages.code(text)
    if not program:
        return ""
    seen = hashlib.sha256(sources.digest(program).encode())
    for name in pages.reads(text):
        for set_name in results.sets():
            file = results.path(name, set_name)
            seen.update(f"{set_name}/{name}".encode() + (file.read_bytes() if file.is_file() else b""))
    return seen.hexdigest()


def outdated(app, env, added, changed, removed):
    """Pages to read again."""
    old = state(env)
    return [d for d in env.found_docs - added if digest(Path(env.doc2path(d))) != old.get(d, {}).get("digest")]


def remember(app, doctree):
    """After a page was read: what it was made from."""
    env = app.env
    glues = {node.refdoc for node in doctree.findall(PendingGlueReference)}
    state(env)[env.docname] = {"digest": digest(Path(env.doc2path(env.docname))), "glues": glues}
    env.study_read = getattr(env, "study_read", set()) | {env.docname}


def rewrite(app, env):
    """Pages to write again, as they glue from one that was read."""
    fresh = env.__dict__.pop("study_read", set())
    return [d for d, page in state(env).items() if page["glues"] & fresh and d in env.found_docs]


def state(env) -> dict:
    """What the last build left, by page."""
    if not hasattr(env, "study_pages"):
        env.study_pages = {}
    return env.study_pages


def setup(app):
    """Called by Sphinx."""
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-read", remember)
    app.connect("env-updated", rewrite)
    return {"parallel_read_safe": False}
