"""Every malformed checkpoint is refused by a typed error that names the tensor and the reason."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.checkpoint.read import read_checkpoint
from cachequant.checkpoint.write import write_checkpoint
from cachequant.errors import CachequantError

O, UP = "transformer.h.1.attn.c_proj", "transformer.h.0.mlp.c_fc"  # noqa: E741  # the first one is square


@pytest.fixture(scope="module")
def good(saved, tmp_path_factory):
    """A checkpoint of a tiny model."""
    root = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEQUANT_CACHE", str(root / "cache"))
        return write_checkpoint(saved("gpt2"), root / "out", "int8")


@pytest.fixture
def folder(good, tmp_path):
    shutil.copytree(good, tmp_path / "bad")
    return tmp_path / "bad"


def rewrite(folder, change, hashes=True):
    """Write the tensors again after `change(tensors)`, with fitting hashes."""
    path = folder / "model.safetensors"
    file = TensorFile(path)
    tensors = {name: file.raw(name).copy() for name in file.tensors}
    change(tensors)
    types = {"float32": "F32", "float16": "F16", "int8": "I8", "int16": "I16"}
    writer = TensorWriter(path, {n: (types[t.dtype.name], t.shape) for n, t in tensors.items()}, {"format": "pt"})
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    writer.close()
    if hashes:
        edit(folder, lambda note: note.update(sha256={n: digest(t) for n, t in tensors.items()}))


def digest(tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest()


def edit(folder, change, file="cachequant.json"):
    note = json.loads((folder / file).read_text())
    change(note)
    (folder / file).write_text(json.dumps(note))


def put(name, index, value):
    def change(tensors):
        tensors[name][index] = value

    return change


def replace(name, make):
    return lambda tensors: tensors.update({name: make(tensors[name])})


def plain(tensors):
    tensors[UP + ".weight"] = tensors.pop(UP + ".qweight").astype(np.float32)
    del tensors[UP + ".scales"]


TENSORS = {
    "-128": (put(O + ".qweight", (3, 5), -128), rf"'{O}.qweight'\[3, 5\] is -128"),
    "nan scale": (put(O + ".scales", (3, 0), np.nan), rf"'{O}.scales'\[3, 0\] is nan"),
    "infinite scale": (put(O + ".scales", (3, 0), np.inf), rf"'{O}.scales'\[3, 0\] is inf"),
    "negative scale": (put(O + ".scales", (3, 0), -0.5), rf"'{O}.scales'\[3, 0\] is -0.5"),
    "negative zero": (put(O + ".scales", (3, 0), -0.0), rf"'{O}.scales'\[3, 0\] is -0.0"),
    "zero scale": (put(O + ".scales", (3, 0), 0), rf"'{O}.scales'\[3, 0\] is zero, but codes"),
    "wrong axis of a square matrix": (replace(O + ".scales", lambda s: s.T), rf"'{O}.scales' has shape \(1, 40\)"),
    "rank of scales": (replace(O + ".scales", lambda s: s[:, 0]), rf"'{O}.scales' has shape \(40,\)"),
    "length of scales": (replace(O + ".scales", lambda s: s[:-1]), rf"'{O}.scales' has shape \(39, 1\)"),
    "mixed precision": (plain, rf"'{UP}.qweight' is missing; '{UP}.weight' is there"),
    "layers that disagree": (replace(UP + ".scales", lambda s: s.astype(np.float16)), rf"'{UP}.scales' is F16"),
    "codes as floats": (replace(UP + ".qweight", lambda q: q.astype(np.float32)), rf"'{UP}.qweight' is F32"),
    "transposed": (replace(UP + ".qweight", lambda q: q.T), rf"'{UP}.qweight' has shape \(40, 160\)"),
    "missing scales": (lambda t: t.pop(UP + ".scales"), rf"'{UP}.scales' is missing"),
    "missing bias": (lambda t: t.pop(UP + ".bias"), rf"'{UP}.bias' is missing"),
    "orphan scales": (lambda t: t.update({"x.scales": np.ones((2, 1), np.float32)}), "unexpected tensor 'x.scales'"),
    "nan weight": (put("transformer.wpe.weight", (2, 1), np.nan), r"wpe.weight\[2, 1\] is nan"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_malformed_tensors(folder, case):
    change, message = TENSORS[case]
    rewrite(folder, change)
    with pytest.raises(CachequantError, match=message):
        read_checkpoint(folder)


def test_a_changed_tensor_and_scales_of_the_other_axis_do_not_match_their_hash(folder):
    rewrite(folder, replace(O + ".scales", lambda s: s[::-1]), hashes=False)
    with pytest.raises(CachequantError, match=f"'{O}.scales' has sha256"):
        read_checkpoint(folder)


NOTES = {
    "newer version": (lambda n: n.update(format_version=2), "format version 2 is newer than 1"),
    "version 0": (lambda n: n.update(format_version=0), "format version 0"),
    "version of another type": (lambda n: n.update(format_version="1"), "format_version is '1'"),
    "axis": (lambda n: n.update(axis=1), "axis 1"),
    "unknown scheme": (lambda n: n.update(scheme="int7"), "unknown scheme 'int7'"),
    "scheme without codes": (lambda n: n.update(scheme="fp32"), "leaves the layers in float32"),
    "scheme of this machine": (lambda n: n.update(scheme="auto"), "'auto' is not a plain name"),
    "another scheme": (lambda n: n.update(scheme="w8"), "scheme is 'int8' in config.json, 'w8'"),
    "parameters": (lambda n: n.update(parameters=7), "parameters is 7"),
    "no hash": (lambda n: n["sha256"].pop(UP + ".bias"), f"'{UP}.bias' has no sha256"),
    "hash of nothing": (lambda n: n["sha256"].update(x=""), "unexpected tensor 'x'"),
    "hash type": (lambda n: n["sha256"].update({UP + ".bias": 3}), "sha256 must map"),
}


@pytest.mark.parametrize("case", NOTES)
def test_malformed_notes(folder, case):
    change, message = NOTES[case]
    edit(folder, change)
    with pytest.raises(CachequantError, match=message):
        read_checkpoint(folder)


def test_a_name_twice_is_refused(folder):
    path = folder / "cachequant.json"
    path.write_text(path.read_text().replace("{", '{"axis": 0,', 1))
    with pytest.raises(CachequantError, match="names 'axis' twice"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d[:-3], "truncated"),
        (lambda d: d + b"x", "trailing bytes"),
        (lambda d: d[:5], "truncated, or not a safetensors file"),
        (lambda d: d.replace(b'"transformer.h.1.ln_1.weight"', b'"transformer.h.0.ln_1.weight"', 1), "twice"),
    ],
    ids=["truncated", "trailing", "stub", "duplicate tensor"],
)
def test_damaged_files(folder, damage, message):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CachequantError, match=message):
        read_checkpoint(folder)


@pytest.mark.parametrize("file", ["cachequant.json", "config.json", "model.safetensors"])
def test_missing_files(folder, file):
    (folder / file).unlink()
    with pytest.raises(CachequantError, match="No such file|no file|holds no weights"):
        read_checkpoint(folder)
