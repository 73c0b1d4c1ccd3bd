"""JSON stays alone on stdout, whoever prints; bars are for terminals only."""

import json
import os

import pytest

from cachequant.cli import output


def test_only_the_object_reaches_stdout(capfd):
    with output.quiet(True):
        print("a library talks")
        os.write(1, b"a native library talks\n")
    output.show({"a": 1.5, "b": "ä"}, True, print)
    out, err = capfd.readouterr()
    assert json.loads(out) == {"a": 1.5, "b": "ä"}
    assert "a native library talks" in err


def test_stdout_comes_back_after_an_error(capfd):
    with pytest.raises(RuntimeError), output.quiet(True):
        raise RuntimeError
    print("here", flush=True)
    assert capfd.readouterr().out == "here\n"


def test_nan_is_not_json():
    with pytest.raises(ValueError):
        output.show({"a": float("nan")}, True, print)


def test_no_bar_without_a_terminal(capfd):
    with output.progress("working", as_json=False) as report:
        report(1, 2)
        report(2, 2, "still working")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_340_000_000, "2.34 GB")])
def test_sizes(count, text):
    assert output.size(count) == text
