"""Puts MathJax beside the pages, so that they need no network.

The one file `tex-svg-full.js` holds all of it: glyphs as SVG instead of fonts, and every TeX extension.
"""

from importlib.metadata import distribution
from pathlib import Path
from shutil import copyfile

SOURCE = "sphinx-mathjax-offline/static/mathjax/tex-svg-full.js"


def copy_mathjax(app):
    """Before pages are written, as Sphinx puts the file's checksum into its address."""
    if app.builder.format == "html":
        target = Path(app.outdir, "_static", app.config.mathjax_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        copyfile(distribution("sphinx-mathjax-offline").locate_file(SOURCE), target)


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
