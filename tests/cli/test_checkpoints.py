"""Checkpoints and GGUF files on the command line: made, generated from, scored, verified."""

import shutil
from pathlib import Path

import pytest

import helpers
from cachequant import verify
from cachequant.assets import texts
from cachequant.kv import calibration
from helpers import checkpoint

WIDE = helpers.LLAMA | dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16)


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory):
    """Folder of a tiny model with `tiny`'s tokenizer; its rows are whole blocks of 32 and its pages can be coded."""
    root = tmp_path_factory.mktemp("wide")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(helpers.TINY, "wide", WIDE)
        shutil.copytree(checkpoint("wide", str(root)), root / "model")
    shutil.copy(f"{tiny}/tokenizer.json", root / "model")
    return str(root / "model")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))


def test_a_checkpoint_is_scored_as_it_is_stored(cli, cli_json, model, text, tmp_path):
    cli("quantize", model, tmp_path / "out", "--scheme", "bfp8")
    scoring = ("--text", text, "--window", 64, "--tokens", 320)
    code, stored = cli_json("perplexity", "--model", tmp_path / "out", *scoring)
    assert (code, stored["scheme"]) == (0, "bfp8")
    assert (
        stored["perplexity"] == cli_json("perplexity", "--model", model, "--scheme", "bfp8", *scoring)[1]["perplexity"]
    )
    code, _, err = cli("perplexity", "--model", tmp_path / "out", *scoring, "--against", "fp32")
    assert code == 2
    assert "quantized as 'bfp8' and holds no float32 weights; allowed: the float32 model with the scheme bfp8" in err
    code, _, err = cli("perplexity", "--model", tmp_path / "out", *scoring, "--scheme", "int8")
    assert (code, "quantized as 'bfp8'; allowed is that" in err) == (2, True)


@pytest.mark.parametrize("scheme", ["int8-smooth", "fp32"])
def test_schemes_that_a_checkpoint_cannot_hold_are_refused_by_name(cli, model, tmp_path, scheme):
    code, _, err = cli("quantize", model, tmp_path / "out", "--scheme", scheme)
    assert code == 2
    assert f"scheme '{scheme}'" in err
    assert "allowed are int8" in err


def test_export_and_generate(cli, cli_json, model, tmp_path):
    file = tmp_path / "m.gguf"
    code, found = cli_json("export", model, file)
    assert (code, found["scheme"], found["vocabulary"]) == (0, "q8_0+head", False)
    assert found["bytes"] == file.stat().st_size
    wanted = ("--ids", "5,6,7", "--max-new-tokens", 40, "--scheme", "q8_0+head", "--kv", "k4v4")
    code, generated = cli_json("generate", "--model", file, *wanted)
    assert (code, generated["kv"]) == (0, "k4v4")
    assert generated["ids"] == cli_json("generate", "--model", model, *wanted, "--calibration", "none")[1]["ids"]
    code, _, err = cli("export", model, file)
    assert (code, "exists; name a new file" in err) == (2, True)
    code, _, err = cli("export", model, tmp_path / "n.gguf", "--scheme", "int8-hadamard")
    assert (code, "allowed: fp32, q8_0, int8" in err) == (2, True)


def test_pages_and_a_calibration_file_behind_a_gguf_file(cli_json, tmp_path, text, monkeypatch):
    """The way of an edge user: a file of another program, pages of codes, calibrated ones too."""
    monkeypatch.setattr(texts, "calibration", lambda: texts.resolve(text))
    monkeypatch.setattr(calibration, "TOKENS", 128)
    monkeypatch.setattr(calibration, "WINDOW", 64)
    monkeypatch.setitem(helpers.TINY, "words", WIDE | dict(vocab_size=264))
    folder = Path(checkpoint("words", str(tmp_path)))
    (folder / "tokenizer.json").write_text(helpers.byte_level())
    file, basis = tmp_path / "m.gguf", tmp_path / "m.kv"
    assert cli_json("export", folder, file)[1]["vocabulary"]
    assert cli_json("calibrate", file, "--out", basis)[0] == 0
    found = {}
    for kv, calibrated in (("k4v4", "none"), ("k4v3", "none"), ("k4v3", basis)):
        wanted = ("--kv", kv, "--calibration", calibrated, "--max-new-tokens", 80)
        code, one = cli_json("generate", "the quick fox", "--model", file, *wanted)
        assert (code, one["kv"], len(one["ids"])) == (0, kv, 80)
        found[kv, calibrated] = one["ids"]
    assert len(set(map(tuple, found.values()))) > 1


def test_a_checkpoint_is_exported_in_its_scheme(cli, cli_json, model, tmp_path):
    cli("quantize", model, tmp_path / "out", "--scheme", "q8_0")
    assert cli_json("export", tmp_path / "out", tmp_path / "m.gguf")[1]["scheme"] == "q8_0"
    cli("quantize", model, tmp_path / "int8")
    assert cli_json("export", tmp_path / "int8", tmp_path / "n.gguf")[1]["scheme"] == "int8"
    cli("quantize", model, tmp_path / "rotated", "--scheme", "int8-hadamard")
    code, _, err = cli("export", tmp_path / "rotated", tmp_path / "o.gguf")
    assert (code, "scheme 'int8-hadamard' is not what Q8_0 holds" in err) == (2, True)


@pytest.mark.parametrize("scheme", ["bfp8+head", "int8-hadamard"])
def test_a_checkpoint_is_verified_under_its_scheme(cli, model, tmp_path, scheme, monkeypatch):
    cli("quantize", model, tmp_path / "out", "--scheme", scheme)
    monkeypatch.setattr(verify, "page_formats", lambda config: ["int8"])
    report = verify.verify(str(tmp_path / "out"))
    names = {c.name for c in report.checks}
    assert report.ok, [c for c in report.checks if not c.ok]
    assert {f"chunking {scheme}", f"threads {scheme}", "snapshot pages int8 (2 layers)"} <= names
    assert ("parity with transformers" in names) == (scheme == "bfp8+head")


def test_a_model_is_verified_through_files(cli, model, monkeypatch):
    monkeypatch.setattr(verify, "page_formats", lambda config: [])
    monkeypatch.setattr(verify, "c1_schemes", lambda config: [])
    monkeypatch.setattr(verify, "grid_schemes", list)
    report = verify.verify(model)
    assert report.ok
    names = {c.name for c in report.checks}
    assert {"checkpoint int8", "checkpoint bfp8+head", "checkpoint q8_0+head", "gguf q8_0+head"} <= names
