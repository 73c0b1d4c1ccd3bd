"""Coded pages of quantized checkpoints: calibrated on their own forward pass, bound to their own fingerprint."""

from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

import cachequant as cq
import helpers
from cachequant import schemes
from cachequant.assets import models
from cachequant.assets.gguf_write import export_gguf
from cachequant.checkpoint.checks import values
from cachequant.checkpoint.write import write_checkpoint
from cachequant.kv import calibration, calibration_file
from cachequant.kv.basis import PLAIN
from cachequant.kv.calibration_file import CalibrationError

TEXT = "The quick brown fox jumps over the lazy dog, and the dog lets it. " * 8


@pytest.fixture(autouse=True)
def own_text(tmp_path, monkeypatch):
    """A cache folder of its own, and a short text to calibrate on."""
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    text = SimpleNamespace(text=TEXT, name="foxes", sha256="0" * 64)
    monkeypatch.setattr(calibration.texts, "calibration", lambda: text)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a tiny llama that reads text, with rows of whole blocks of 32."""
    root = str(tmp_path_factory.mktemp("models"))
    with pytest.MonkeyPatch.context() as patch:
        wide = helpers.TINY["llama-wide-heads"] | dict(vocab_size=264, max_position_embeddings=160)
        patch.setitem(helpers.TINY, "wide-words", wide)
        folder = helpers.checkpoint("wide-words", root)
    Library.from_str(helpers.byte_level()).save(f"{folder}/tokenizer.json")
    return folder


def written(model, tmp_path, scheme, head=None):
    return write_checkpoint(model, tmp_path / "out", scheme, head)


@pytest.mark.parametrize(
    ("scheme", "head"), [("int8", None), ("q8_0", "int8-block32"), ("int8-block32", None), ("int8-hadamard", None)]
)
def test_a_checkpoint_is_calibrated_with_its_own_decoder(model, tmp_path, scheme, head):
    folder = written(model, tmp_path, scheme, head)
    loaded = cq.load(folder, kv="k4v4")
    assert (loaded.pages.basis.tag, loaded.scheme) == (f"foxes:{calibration.TOKENS}", schemes.get(scheme, head))
    asset, stands_for = models.resolve(folder), values(models.resolve(folder))
    if scheme == "int8-hadamard":  # the codes are of turned weights
        assert not np.allclose(calibration.grams(asset), calibration.grams(stands_for), rtol=0.1)
        stands_for = models.resolve(model)
    np.testing.assert_allclose(calibration.grams(asset), calibration.grams(stands_for), rtol=0.05, atol=0.05)
    own, floats = (calibration.fit(a).array for a in (asset, models.resolve(model)))
    np.testing.assert_array_equal(loaded.pages.basis.array, own)
    own, floats = own[:, :, :, 0], floats[:, :, :, 0]  # means
    assert (own != floats).any() and np.abs(own - floats).max() < 0.1 * np.abs(floats).max()


def test_a_last_window_that_is_never_coded_adds_nothing(model):
    decoder = cq.load(model)._decoder
    ids = list(range(100))
    whole, more = calibration.moments(decoder, ids, 100), calibration.moments(decoder, ids + ids[:20], 100)
    np.testing.assert_array_equal(whole.second, more.second)


def test_it_is_closer_than_the_rotation_alone(model, tmp_path):
    folder = written(model, tmp_path, "int8")
    ids = cq.load(folder).encode(TEXT[9:])[:150]

    def logits(**how):
        with cq.load(folder, **how).session() as session:
            return session.extend(ids, logits="all")

    exact = logits()
    errors = [np.square(logits(kv="k2v2", calibration=c) - exact).mean() for c in ("auto", "none")]
    assert errors[0] < 0.8 * errors[1]


def test_a_basis_belongs_to_its_checkpoint(model, tmp_path):
    folder = written(model, tmp_path, "int8")
    asset = models.resolve(folder)
    calibration_file.save(tmp_path / "own.kv", asset, calibration.fit(asset))
    loaded = cq.load(folder, kv="k4v4", calibration=str(tmp_path / "own.kv"))
    assert loaded.fingerprint == cq.load(folder, kv="k4v4").fingerprint
    assert loaded.fingerprint != cq.load(model, "int8", kv="k4v4").fingerprint
    with pytest.raises(CalibrationError, match="fitted to model"):
        cq.load(model, "int8", kv="k4v4", calibration=str(tmp_path / "own.kv"))


def test_a_checkpoint_without_a_tokenizer_is_rotated_only(tmp_path):
    plain = helpers.checkpoint("llama-wide-heads", str(tmp_path / "plain"))
    assert cq.load(written(plain, tmp_path, "int8"), kv="k4v4").pages.basis.tag == PLAIN


def test_bits_of_layers_are_measured_on_a_checkpoint_too(model, tmp_path):
    bits = cq.load(written(model, tmp_path, "int8"), kv="mixed").kv.layers(2)
    assert np.mean(bits) == 3


def test_a_checkpoint_of_a_gguf_file_keeps_its_codes_and_is_calibrated(model, tmp_path):
    export_gguf(models.resolve(model), tmp_path / "m.gguf", schemes.get("q8_0+head"))
    folder = written(str(tmp_path / "m.gguf"), tmp_path, "q8_0", "int8-block32")
    file, checkpoint = (cq.load(source, "q8_0+head", kv="k4v4") for source in (tmp_path / "m.gguf", folder))
    assert file.pages.basis.tag == checkpoint.pages.basis.tag == f"foxes:{calibration.TOKENS}"
    assert file.generate("The fox", max_new_tokens=60).ids
    assert checkpoint.generate("The fox", max_new_tokens=60).ids
