import nbformat.v4 as v4
import pytest

from cachequant.errors import ParameterError
from cachequant.study import params


def cells(source, tags=("parameters",)):
    return [v4.new_code_cell("import os"), v4.new_code_cell(source, metadata={"tags": list(tags)})]


KNOWN = params.declared(
    cells("""
tokens: int = 64  # a comment
clip: float = 4.0
model: str = "m"
fast: bool = False
bits: list[int] = [2, 4]
""")
)


def test_declared_names_types_and_defaults():
    assert KNOWN == {
        "tokens": ("int", 64),
        "clip": ("float", 4.0),
        "model": ("str", "m"),
        "fast": ("bool", False),
        "bits": ("list[int]", [2, 4]),
    }


@pytest.mark.parametrize(
    "source",
    [
        "tokens = 64",
        "tokens: int",
        "tokens: int = 8 * 8",
        "import os",
        "tokens: int = 1.5",
        "tokens: dict = {}",
        "tokens: list = [1]",
        "tokens: int | None = None",
    ],
)
def test_a_parameters_cell_holds_only_plain_declarations(source):
    with pytest.raises(ParameterError, match="parameters cell"):
        params.declared(cells(source))


def test_exactly_one_cell_is_tagged():
    with pytest.raises(ParameterError, match="has 0"):
        params.declared(cells("tokens: int = 1", tags=()))
    with pytest.raises(ParameterError, match="has 2"):
        params.declared(cells("a: int = 1") + cells("b: int = 1"))


def test_given_values_replace_defaults_and_an_int_serves_as_a_float():
    values = params.check({"clip": 3, "bits": [8], "fast": True}, KNOWN)
    assert values == {"tokens": 64, "clip": 3.0, "model": "m", "fast": True, "bits": [8]}
    assert type(values["clip"]) is float


@pytest.mark.parametrize(
    "given",
    [
        {"token": 1},
        {"tokens": 1.0},
        {"tokens": True},
        {"tokens": "64"},
        {"tokens": None},
        {"clip": "1e3"},
        {"fast": 1},
        {"bits": 2},
        {"bits": [2, "4"]},
        {"model": 7},
    ],
)
def test_unknown_and_mistyped_values_are_errors_that_list_all_parameters(given):
    with pytest.raises(ParameterError) as error:
        params.check(given, KNOWN)
    message = str(error.value)
    assert repr(next(iter(given))) in message
    for name, (kind, default) in KNOWN.items():
        assert f"{name}: {kind} = {default!r}" in message


def test_values_given_as_text():
    given = params.parse(["tokens=4096", "clip: 2.5, bits: [2, 3]", "model=a b=c", "fast=true"])
    assert given == {"tokens": 4096, "clip": 2.5, "bits": [2, 3], "model": "a b=c", "fast": True}
    assert params.parse([""]) == {} and params.parse([]) == {}


@pytest.mark.parametrize(
    "text",
    ["tokens", "tokens: [1", "4096", "a: 1, a b", "1: 2", "a=1, b=2", "a=1, b: 2", "a: 1, b=2", "a b=1"],
)
def test_text_that_names_no_value_is_an_error(text):
    with pytest.raises(ParameterError, match="allowed"):
        params.parse([text])


def test_a_parameter_given_twice_is_an_error():
    with pytest.raises(ParameterError, match="'tokens' is given twice"):
        params.parse(["tokens=1", "tokens: 2"])
