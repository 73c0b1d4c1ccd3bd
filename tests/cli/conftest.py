"""Runs commands in this process, and tiny models for them to run."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cachequant.cli import call
from helpers import checkpoint


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
        assert out.count("\n") == 1, err
        return code, json.loads(out, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))

    return run


@pytest.fixture(scope="session")
def wordless(tmp_path_factory):
    """Folder of a tiny random model without a tokenizer; its context is 96 tokens, its vocabulary 131."""
    return checkpoint("gpt2", str(tmp_path_factory.mktemp("wordless")))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder of a tiny random model whose tokenizer has a token for each ASCII character."""
    folder = tmp_path_factory.mktemp("tiny")
    shutil.copytree(checkpoint("llama-gqa-tied", str(folder)), folder / "model")
    characters = {chr(c): c for c in range(128)}
    tokenizer = Tokenizer(models.BPE(characters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    return str(folder / "model")


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A text file of 600 ASCII characters."""
    path = tmp_path_factory.mktemp("text") / "plain.txt"
    path.write_text("The quick brown fox jumps over the lazy dog; " * 14, encoding="utf8")
    return Path(path)
