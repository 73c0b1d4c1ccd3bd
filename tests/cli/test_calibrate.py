"""`cachequant calibrate`: what it needs, and what it writes and says."""

import json

import numpy as np

import helpers
from cachequant.cli import loading
from cachequant.kv import calibration, calibration_file
from cachequant.kv.basis import Basis


def test_the_command_asks_for_a_file(cli):
    code, out, err = cli("calibrate", "smollm2-135m")
    assert (code, out) == (2, "") and "--out FILE" in err
    code, _, err = cli("calibrate", "smollm2-135m", "--out", "/nowhere/here/basis.kv")
    assert code == 2 and "does not exist" in err


def test_the_command_writes_and_says_how_long_it_took(cli, monkeypatch, tmp_path):
    asset = helpers.random_model(width=32, heads=2, kv_heads=1, head_dim=16)._asset
    basis = Basis(np.ones((2, 1, 2, 33, 16), np.float32), "letters:90")
    monkeypatch.setattr(calibration, "fit", lambda _: basis)
    monkeypatch.setattr(loading, "resolve_model", lambda *_: asset)
    code, out, err = cli("calibrate", "tiny", "--out", tmp_path / "tiny.kv", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and found["tag"] == "letters:90" and found["seconds"] >= 0
    assert found["bytes"] == (tmp_path / "tiny.kv").stat().st_size
    assert calibration_file.read(tmp_path / "tiny.kv", asset).sha256 == basis.sha256
