"""Runs commands in this process."""

import json

import pytest

from cachequant.cli import call


@pytest.fixture
def cli(capfd):
    """Call with arguments; gives exit code, stdout and stderr."""

    def run(*arguments):
        capfd.readouterr()
        code = call([str(a) for a in arguments])
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def cli_json(cli):
    """Call with arguments and --json; gives exit code and the object, after checking that nothing else was printed."""

    def run(*arguments):
        code, out, err = cli(*arguments, "--json")
        assert err == ""
        assert out.count("\n") == 1
        return code, json.loads(out, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))

    return run
