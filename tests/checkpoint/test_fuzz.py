"""10,000 mutated files of checkpoints: a typed error, or a model that keeps every promise; never a crash.

Mutations know the files: most keep the header readable and the hashes right, so that they get as far as what the
loader checks last.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from cachequant.assets.store import ModelAsset
from cachequant.assets.tensorfile import TensorFile, TensorWriter, strict_json
from cachequant.checkpoint import read
from cachequant.checkpoint.write import write_checkpoint
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.random import random_weights
from cachequant.errors import AssetError, CachequantError
from cachequant.quantize import Quantized

FOLDERS, HEADERS, NOTES = 3_000, 5_000, 2_000
TINY = DecoderConfig(
    family="gpt2", activation="gelu_tanh", vocab=5, context=4, width=4, layers=1, heads=1, kv_heads=1, head_dim=4,
    ffn=8, norm_eps=1e-5, tied=True, attention_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
SCHEMES = ("int8", "bfp8+head", "int8-block32+head:int8", "block16-snap4", "int8-tensor")
ODD = (None, True, 0, -1, 2, 1e300, float("nan"), "", "x", "int8", [], [1], {}, {"a": 1}, 1 << 70, "F32", "I8")
FLOATS = (np.nan, np.inf, -np.inf, -0.0, -1.0, 1e-45, 3.4e38)


def scramble(rng, data: bytes) -> bytes:
    """Change, drop, repeat or insert a few bytes."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at, length = int(rng.integers(len(data))), int(rng.integers(1, 9))
        kind = rng.integers(4)
        if kind == 0:
            data[at] ^= int(rng.integers(1, 256))
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length]
        else:
            data[at:at] = rng.bytes(length)
        data = data or bytearray(b"{")
    return bytes(data)


def put(path: Path, data: bytes) -> None:
    """Write a file anew; emptying it first would make some file systems write the old one to disk."""
    path.unlink()
    path.write_bytes(data)


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def change_value(rng, value: dict) -> None:
    """Put something odd, or nothing, in the place of one value of an object, or of one inside of it."""
    key = pick(rng, list(value))
    if isinstance(value[key], dict) and value[key] and rng.integers(2):
        change_value(rng, value[key])
    elif rng.integers(4):
        value[key] = pick(rng, ODD)
    elif rng.integers(2):
        del value[key]
    else:
        value[str(pick(rng, ODD))] = value[key]


class Files:
    """A checkpoint's files in memory, taken apart."""

    def __init__(self, folder: Path):
        self.bytes = {path.name: path.read_bytes() for path in folder.iterdir()}
        length = int.from_bytes(self.bytes["model.safetensors"][:8], "little")
        self.header = json.loads(self.bytes["model.safetensors"][8 : 8 + length])
        self.payload = self.bytes["model.safetensors"][8 + length :]
        self.objects = {name: json.loads(self.bytes[name]) for name in ("cachequant.json", "config.json")}

    def tensors(self, header: dict, payload: bytes) -> bytes:
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + payload


def mutate(rng, good: Files) -> dict[str, bytes]:
    """The files that differ."""
    kind = rng.integers(8)
    if kind == 0:
        name = pick(rng, list(good.bytes))
        return {name: scramble(rng, good.bytes[name])}
    if kind == 1:
        name = pick(rng, list(good.objects))
        value = json.loads(good.bytes[name])
        change_value(rng, value)
        return {name: json.dumps(value).encode()}
    if kind == 2:
        header = json.loads(json.dumps(good.header))
        change_value(rng, header)
        return {"model.safetensors": good.tensors(header, good.payload)}
    return change_tensor(rng, good)


def change_tensor(rng, good: Files) -> dict[str, bytes]:
    """Other bytes, a special value, or another shape of the same size in a tensor, mostly with the hash that fits."""
    header, payload = json.loads(json.dumps(good.header)), bytearray(good.payload)
    filled = [key for key in header if key != "__metadata__" and np.ptp(header[key]["data_offsets"])]
    name = pick(rng, filled)
    entry = header[name]
    start, end = entry["data_offsets"]
    kind = rng.integers(4)
    if kind == 0:
        entry["shape"] = entry["shape"][::-1]
    elif kind == 1 and entry["dtype"] == "F32":
        at = start + 4 * int(rng.integers((end - start) // 4))
        payload[at : at + 4] = np.float32(pick(rng, FLOATS)).tobytes()
    elif kind == 2 and entry["dtype"] != "F32":
        payload[int(rng.integers(start, end))] = pick(rng, (0, 0x80, 0x81, 0x7F, 0xFF))
    else:
        payload[int(rng.integers(start, end))] = int(rng.integers(256))
    changed = {"model.safetensors": good.tensors(header, bytes(payload))}
    if rng.integers(8):
        note = json.loads(good.bytes["cachequant.json"])
        note["sha256"][name] = hashlib.sha256(payload[start:end]).hexdigest()
        changed["cachequant.json"] = json.dumps(note).encode()
    return changed


def check_promises(asset) -> None:
    for tensor in asset.weights.values():
        if isinstance(tensor, Quantized):
            assert tensor.codes.min() >= -127
            assert np.isfinite(tensor.steps()).all()
            assert (tensor.steps() >= 0).all()
        else:
            assert np.isfinite(tensor).all()


@pytest.fixture
def reached(monkeypatch):
    """How often the loader came as far as the values of a tensor: a list with an entry a time."""
    real, seen = read.check_quantized, []
    monkeypatch.setattr(read, "check_quantized", lambda *given: seen.append(1) or real(*given))
    return seen


def test_mutated_checkpoints_are_refused_or_keep_every_promise(rng, tmp_path, reached):
    asset = ModelAsset("tiny", TINY, random_weights(TINY), None, "0" * 64, True, None, {})
    refused, deep = 0, 0
    for scheme in SCHEMES:
        folder = write_checkpoint(asset, tmp_path / scheme, scheme)
        good = Files(folder)
        for _ in range(FOLDERS // len(SCHEMES)):
            changed = mutate(rng, good)
            for name, data in changed.items():
                put(folder / name, data)
            reached.clear()
            try:
                check_promises(read.read_checkpoint(folder))
            except CachequantError:
                refused += 1
            deep += bool(reached)
            for name in changed:
                put(folder / name, good.bytes[name])
    assert deep > 0.4 * FOLDERS
    assert 0.4 * FOLDERS < refused < FOLDERS


def test_mutated_headers_are_refused_or_read_in_bounds(rng, tmp_path):
    path = tmp_path / "tiny.safetensors"
    writer = TensorWriter(path, {"a.qweight": ("I8", (2, 3)), "a.scales": ("F32", (2, 1))}, {"format": "pt"})
    writer.write("a.qweight", np.ones((2, 3), np.int8))
    writer.write("a.scales", np.ones((2, 1), np.float32))
    writer.close()
    good, refused = path.read_bytes(), 0
    for _ in range(HEADERS):
        put(path, scramble(rng, good))
        try:
            file = TensorFile(path)
            assert sum(file.raw(name).nbytes for name in file.tensors) <= path.stat().st_size
        except AssetError:
            refused += 1
    assert HEADERS / 2 < refused < HEADERS


def test_mutated_json_is_an_object_or_refused(rng):
    good = json.dumps({"format_version": 1, "scheme": "int8", "sha256": {"a": "b"}}).encode()
    refused = 0
    for _ in range(NOTES):
        try:
            assert isinstance(strict_json(scramble(rng, good), "note"), dict)
        except AssetError:
            refused += 1
    assert 0 < refused < NOTES
