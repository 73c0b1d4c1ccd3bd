"""A calibration in a file: what was fitted comes back bit for bit, and nothing else is accepted."""

import numpy as np
import pytest

import cachequant as cq
import helpers
from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.errors import CachequantError, InputError
from cachequant.kv import calibration, calibration_file
from cachequant.kv.basis import Basis, fitted, plain
from cachequant.kv.calibration_file import CalibrationError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return helpers.checkpoint("llama-coded", str(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def model(folder):
    return cq.load(folder)


@pytest.fixture(scope="module")
def basis(model):
    seen = calibration.moments(model._decoder, list(range(90)), 90)
    return fitted(seen, calibration.grams(model._asset), "letters:90")


@pytest.fixture
def file(model, basis, tmp_path):
    calibration_file.save(tmp_path / "basis.kv", model._asset, basis)
    return tmp_path / "basis.kv"


def test_a_model_reads_what_was_saved(folder, model, basis, file):
    read = calibration_file.read(file, model._asset)
    np.testing.assert_array_equal(read.array, basis.array)
    np.testing.assert_array_equal(read.feedback, basis.feedback)
    assert (read.tag, read.sha256) == (basis.tag, basis.sha256)
    loaded = cq.load(folder, kv="k4v4", calibration=str(file))
    other = model.with_kv("k4v4", str(file))
    assert loaded.fingerprint == other.fingerprint != model.with_kv("k4v4", "none").fingerprint
    ids = list(range(80))
    with loaded.session() as a, model.with_kv("k4v4", "none").session() as b:
        assert (a.extend(ids) != b.extend(ids)).any()


def test_a_basis_without_feedback_has_none(model, tmp_path):
    c = model.config
    calibration_file.save(
        tmp_path / "flat.kv", model._asset, Basis(plain(c.layers, c.kv_heads, c.head_dim).array, "flat")
    )
    assert calibration_file.read(tmp_path / "flat.kv", model._asset).feedback is None


def test_nothing_is_left_when_writing_fails(model, basis, tmp_path, monkeypatch):
    def fail(self):
        raise OSError("disk full")

    monkeypatch.setattr(TensorWriter, "close", fail)
    with pytest.raises(OSError, match="disk full"):
        calibration_file.save(tmp_path / "basis.kv", model._asset, basis)
    assert not list(tmp_path.iterdir())


def rewritten(file, **changes):
    """The file with other metadata, and a hash that fits them."""
    found = TensorFile(file)
    metadata = {k: v for k, v in (found.metadata | changes).items() if v is not None}
    tensors = {name: np.array(found.raw(name)) for name in found.tensors}
    if {"sha256", *calibration_file.FIELDS} == metadata.keys():
        metadata["sha256"] = calibration_file._digest(metadata, tensors)
    writer = TensorWriter(file, {name: ("F32", tensor.shape) for name, tensor in tensors.items()}, metadata)
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    writer.close()
    return file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_sha256": "0" * 64}, "fitted to model"),
        ({"basis": "mean; no rotation"}, "basis is 'mean; no rotation'"),
        ({"format_version": "9"}, "format_version is '9'"),
        ({"tag": "rotation"}, "tag is 'rotation'"),
        ({"tag": None}, "not a calibration file"),
        ({"more": "1"}, "not a calibration file"),
    ],
    ids=lambda v: v if isinstance(v, str) else next(iter(v)),
)
def test_other_models_and_bases_are_refused(model, file, changes, message):
    with pytest.raises(CalibrationError, match=message):
        calibration_file.read(rewritten(file, **changes), model._asset)


def test_another_shape_is_refused(model, file, tmp_path):
    calibration_file.save(tmp_path / "other.kv", model._asset, Basis(plain(3, 1, 16).array, "mine"))
    with pytest.raises(CalibrationError, match="this model needs"):
        calibration_file.read(tmp_path / "other.kv", model._asset)


@pytest.mark.parametrize("damage", ["cut", "flipped", "more", "text"])
def test_damage_is_seen(folder, file, damage):
    data = bytearray(file.read_bytes())
    if damage == "flipped":
        data[-1000] ^= 4
    made = {"cut": data[:-5], "flipped": data, "more": data + b"0", "text": b"means"}[damage]
    file.write_bytes(made)
    with pytest.raises(CalibrationError):
        calibration.check_calibration(str(file))
    with pytest.raises(CalibrationError):
        cq.load(folder, kv="k4v4", calibration=str(file))


def test_values_that_are_not_finite_are_refused(model, basis, tmp_path):
    array = basis.array.copy()
    array[0, 0, 0, 0, 0] = np.nan
    calibration_file.save(tmp_path / "nan.kv", model._asset, Basis(array, "mine"))
    with pytest.raises(CalibrationError, match="not finite"):
        calibration_file.open_checked(tmp_path / "nan.kv")


def test_what_is_no_calibration(folder):
    with pytest.raises(InputError, match="'missing.kv' is not one of auto, none, nor a file"):
        cq.load(folder, kv="k4v4", calibration="missing.kv")
    with pytest.raises(InputError, match="no tokenizer"):
        calibration.fit(cq.load(folder)._asset)
    assert issubclass(CalibrationError, CachequantError)
