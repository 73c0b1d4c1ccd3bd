"""`verify` passes on right models and notices what it is for: wrong logits, results that depend on cuts or threads."""

import importlib.util

import numpy as np
import pytest

from cachequant import verify
from cachequant.decoder.forward import Decoder
from cachequant.errors import InputError
from cachequant.kv.session import Session
from helpers import checkpoint


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("models"))
    return {name: checkpoint(name, root) for name in ("gpt2", "llama-odd-heads-untied", "llama-coded")}


@pytest.fixture
def quick(monkeypatch):
    """Fewer schemes: these tests ask whether a fault is seen, not where."""
    monkeypatch.setattr(verify, "c1_schemes", lambda config: [verify.schemes.get(s) for s in ("fp32", "bfp8+head")])
    monkeypatch.setattr(verify, "grid_schemes", lambda: [verify.schemes.get("block64-snap4")])


def failed(report):
    return {c.name for c in report.checks if not c.ok}


@pytest.mark.parametrize("name", ["gpt2", "llama-odd-heads-untied"])
def test_everything_passes(folders, name):
    seen = []
    report = verify.verify(folders[name], lambda done, total, label: seen.append((done, total, label)))
    assert failed(report) == set()
    assert report.ok
    names = [c.name for c in report.checks]
    assert len(names) == len(set(names))
    wanted = {"parity with transformers", "greedy tokens", "chunking int8", "threads bfp8", "chunking int8+head"}
    wanted |= {"chunking row-snap4 (2 layers)", "threads block16-snap8 (2 layers)", "round trip block32-exact-fp16"}
    assert wanted - set(names) == set()
    assert not any("tensor-exact" in n or n.endswith("int8-tensor") for n in names if not n.startswith("round trip"))
    assert [done for done, _, _ in seen] == list(range(seen[0][1]))


def test_page_formats_are_checked_where_they_fit(folders, quick):
    names = {c.name for c in verify.verify(folders["llama-coded"]).checks if c.ok}
    for kv in ("fp16", "int8", "k4v4", "k4v3", "k3v3", "k2v2"):
        assert {f"{what} pages {kv} (2 layers)" for what in ("chunking", "threads", "branch", "snapshot")} <= names
    assert "distortion of 2 bits, pages k2v2 (2 layers)" in names


def test_the_json_form(folders, quick):
    found = verify.verify(folders["gpt2"]).to_json()
    assert found["ok"] is True
    assert all({"name", "ok", "value", "limit"} <= c.keys() for c in found["checks"])


def test_an_empty_list_is_not_ok():
    assert not verify.Report("m", "t", []).ok


def test_a_check_that_did_not_run_is_not_ok(folders, quick, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    report = verify.verify(folders["gpt2"])
    missing = [c for c in report.checks if c.ok is None]
    assert [c.name for c in missing] == ["parity with transformers", "greedy tokens"]
    assert "torch" in missing[0].note
    assert not report.ok


def test_wrong_logits_fail_parity(folders, quick, monkeypatch):
    right = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, hidden: right(self, hidden) + np.float32(0.002))
    assert failed(verify.verify(folders["gpt2"])) == {"parity with transformers"}


def test_wrong_tokens_fail_greedy(folders, quick, monkeypatch):
    right = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, hidden: -right(self, hidden))
    assert failed(verify.verify(folders["gpt2"])) == {"parity with transformers", "greedy tokens"}


def test_results_that_depend_on_the_cut_fail(folders, quick, monkeypatch):
    right = Session.extend

    def extend(self, ids, logits="last"):
        return right(self, ids, logits) * np.float32(1 + 1e-6 * (len(ids) == 1))

    monkeypatch.setattr(Session, "extend", extend)
    names = {n for n in failed(verify.verify(folders["gpt2"])) if n.startswith("chunking")}
    assert names == {"chunking fp32", "chunking bfp8+head", "chunking block64-snap4 (2 layers)"}


def test_results_that_depend_on_threads_fail(folders, quick, monkeypatch):
    right = Decoder.forward
    scale = lambda: np.float32(1 + 1e-6 * (verify.kernels.get_threads() == 1))  # noqa: E731
    monkeypatch.setattr(Decoder, "forward", lambda self, *given: right(self, *given) * scale())
    assert failed(verify.verify(folders["gpt2"])) == {
        "threads fp32", "threads bfp8+head", "threads block64-snap4 (2 layers)"
    }  # fmt: skip


def test_threads_are_put_back(folders, quick):
    verify.kernels.set_threads(1)
    try:
        verify.verify(folders["gpt2"])
        assert verify.kernels.get_threads() == 1
    finally:
        verify.kernels.set_threads()


def test_a_quantizer_off_by_a_step_fails(folders, quick, monkeypatch):
    right = verify.quantize.dequantize
    monkeypatch.setattr(verify.quantize, "dequantize", lambda q: right(q) + 2 * q.steps()[:, :1])
    assert all(n.startswith("round trip") for n in failed(verify.verify(folders["gpt2"])))
    assert failed(verify.verify(folders["gpt2"]))


def test_an_unknown_model_is_refused():
    with pytest.raises(InputError, match="smollm2-135m"):
        verify.verify("no model of this name !")
