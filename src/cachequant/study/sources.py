"""Which files of the library a piece of code depends on, and one digest of them all.

Imports are followed statically, inside functions too. A string that spells a module's full name counts as an import:
that is how lazy attributes and worker processes name theirs. Comments, docstrings and layout do not change a digest.
"""

import ast
import hashlib
import re
from functools import cache
from pathlib import Path

import cachequant

PACKAGE = Path(cachequant.__file__).parent
_DOTTED = re.compile(r"cachequant(\.\w+)+")


def modules(code: str) -> list[Path]:
    """Files of the library that `code` imports, directly or through others, sorted."""
    found: set[Path] = set()
    waiting = _imports(code, "__main__")
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting |= _module_imports(path, path.stat().st_mtime_ns)
    return sorted(found)


def digest(code: str) -> str:
    """sha256 of the meaning of `code` and of every file of the library that it depends on."""
    seen = hashlib.sha256(meaning(code).encode())
    for path in modules(code):
        seen.update(f"\n# {path.relative_to(PACKAGE)}\n".encode() + meaning(path.read_text(encoding="utf8")).encode())
    return seen.hexdigest()


def meaning(code: str) -> str:
    """The code without comments, docstrings and layout."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


@cache
def _module_imports(path: Path, changed: int) -> frozenset[Path]:
    parts = ["cachequant", *path.relative_to(PACKAGE).with_suffix("").parts]
    return frozenset(_imports(path.read_text(encoding="utf8"), ".".join(parts)))


def _imports(code: str, module: str) -> set[Path]:
    found: set[Path] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for name in node.names:
                found |= _files(name.name)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(
                [*module.split(".")[: -node.level], *filter(None, [node.module])] if node.level else [node.module]
            )
            for name in node.names:
                found |= _files(f"{base}.{name.name}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.match(node.value):
            found |= _files(_DOTTED.match(node.value).group())
    return found


def _files(dotted: str) -> set[Path]:
    """A module's file and those of the packages around it; names inside a module do not count."""
    first, *parts = dotted.split(".")
    if first != "cachequant":
        return set()
    found = {PACKAGE / "__init__.py"}
    for i in range(1, len(parts) + 1):
        at = PACKAGE.joinpath(*parts[:i])
        found |= {f for f in (at / "__init__.py", at.with_suffix(".py")) if f.is_file()}
    return found
