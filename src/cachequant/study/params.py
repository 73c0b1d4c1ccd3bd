"""Parameters of compute notebooks: what a notebook declares, and strict checks of what a user gives.

papermill only warns of an unknown name and guesses types, so names and types are checked here before a kernel starts.
"""

import ast
import re
from typing import Any

import yaml

from cachequant.errors import ParameterError

Declared = dict[str, tuple[str, Any]]
_SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
_FORMS = "name=value, or 'name: value, name: value'"
_SEVERAL = re.compile(r",\s*[A-Za-z_]\w*\s*[=:]")


def declared(cells) -> Declared:
    """Name -> (type, default) of the cell tagged `parameters`.

    Parameters
    ----------
    cells : iterable of notebook cells
        Exactly one has the tag, and every statement in it is `name: type = literal`; types are `int`, `float`, `str`,
        `bool` and `list[...]` of one of these (papermill reads no others).
    """
    tagged = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ParameterError(f"a notebook needs one cell tagged 'parameters'; this one has {len(tagged)}")
    found: Declared = {}
    for node in ast.parse(tagged[0].source).body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            raise ParameterError(f"parameters cell: {ast.unparse(node)!r} is not of the form 'name: type = literal'")
        name, kind = node.target.id, ast.unparse(node.annotation)
        try:
            default = ast.literal_eval(node.value)
        except ValueError:
            raise ParameterError(f"parameters cell: the default of {name!r} is not a literal") from None
        if not _is_kind(kind):
            raise ParameterError(
                f"parameters cell: {name!r} has type {kind}; allowed: int, float, str, bool, list[...]"
            )
        found[name] = (kind, _fit(kind, default))
        if found[name][1] is _WRONG:
            raise ParameterError(f"parameters cell: {name!r} is declared {kind} but its default is {default!r}")
    return found


def check(given: dict[str, Any], known: Declared) -> dict[str, Any]:
    """Every parameter with its value: the given one if there is one, else the default.

    Raises
    ------
    ParameterError
        A name that is not declared, or a value of another type; the message lists all parameters.
    """
    values = {name: default for name, (_, default) in known.items()}
    for name, value in given.items():
        if name not in known:
            raise ParameterError(f"unknown parameter {name!r}; known:\n{describe(known)}")
        kind = known[name][0]
        values[name] = _fit(kind, value)
        if values[name] is _WRONG:
            raise ParameterError(
                f"parameter {name!r} has to be {kind}, not {value!r} ({_name(value)}):\n{describe(known)}"
            )
    return values


def parse(pairs: list[str]) -> dict[str, Any]:
    """Values given as text: each item is one `name=value`, or the inside of a YAML mapping, `a: 1, b: [2, 3]`.

    >>> parse(["max_tokens=4096", "window: 512, schemes: [int8, bfp8]"])
    {'max_tokens': 4096, 'window': 512, 'schemes': ['int8', 'bfp8']}
    """
    found: dict[str, Any] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        single = bool(equals) and name.strip().isidentifier()
        if single and _SEVERAL.search(value):
            raise ParameterError(f"cannot read {text!r}; allowed: {_FORMS}; name=value takes one at a time")
        try:
            new = {name.strip(): yaml.safe_load(value)} if single else yaml.safe_load("{" + text + "}")
        except yaml.YAMLError:
            new = None
        if not isinstance(new, dict) or not all(isinstance(n, str) for n in new):
            raise ParameterError(f"cannot read {text!r}; allowed: {_FORMS}")
        if not single and any(v is None and f"{n}:" not in text for n, v in new.items()):
            raise ParameterError(f"no value in {text!r}; allowed: {_FORMS}")
        if twice := found.keys() & new.keys():
            raise ParameterError(f"parameter {sorted(twice)[0]!r} is given twice")
        found |= new
    return found


def describe(known: Declared) -> str:
    """One line a parameter: name, type and default."""
    return "\n".join(f"  {name}: {kind} = {default!r}" for name, (kind, default) in known.items()) or "  (none)"


_WRONG = object()


def _is_kind(kind: str) -> bool:
    return kind in _SCALARS or (kind.startswith("list[") and kind[5:-1] in _SCALARS)


def _fit(kind: str, value: Any) -> Any:
    """The value as the declared type, or _WRONG; an int serves as a float, nothing else is converted."""
    if kind.startswith("list["):
        if not isinstance(value, list):
            return _WRONG
        items = [_fit(kind[5:-1], v) for v in value]
        return _WRONG if any(v is _WRONG for v in items) else items
    if kind == "float" and type(value) is int:
        return float(value)
    return value if type(value) is _SCALARS[kind] else _WRONG


def _name(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
