"""Mutated checkpoints: a typed error, or the same tensors; never a crash."""

import json

import numpy as np

from cachequant.assets.models import resolve
from cachequant.assets.tensorfile import TensorFile, strict_json
from cachequant.checkpoint.invariants import check_quantized
from cachequant.checkpoint.read import read_checkpoint
from cachequant.checkpoint.write import write_checkpoint
from cachequant.errors import AssetError, CachequantError
from cachequant.quantize import quantize
from cachequant.schemes import PRESETS


def mutate(rng, data: bytes) -> bytes:
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


def test_mutated_headers_are_refused_or_read_in_bounds(rng, tmp_path):
    from cachequant.assets.tensorfile import TensorWriter

    path = tmp_path / "tiny.safetensors"
    writer = TensorWriter(path, {"a.qweight": ("I8", (2, 3)), "a.scales": ("F32", (2, 1))}, {"format": "pt"})
    writer.write("a.qweight", np.ones((2, 3), np.int8))
    writer.write("a.scales", np.ones((2, 1), np.float32))
    writer.close()
    good, refused = path.read_bytes(), 0
    for _ in range(10_000):
        path.write_bytes(mutate(rng, good))
        try:
            file = TensorFile(path)
            assert sum(file.raw(name).nbytes for name in file.tensors) <= path.stat().st_size
        except AssetError:
            refused += 1
    assert 5_000 < refused < 10_000


def test_mutated_codes_and_scales_are_refused_or_finite(rng):
    for scheme in ("int8", "bfp8", "int8-block32", "int8-tensor"):
        good = quantize(rng.standard_normal((4, 40)).astype(np.float32), PRESETS[scheme].weight)
        refused = 0
        for _ in range(500):
            codes, scales = good.codes.copy(), good.scales.copy()
            for array in (codes, scales):
                array.reshape(-1).view(np.uint8)[rng.integers(array.nbytes)] = rng.integers(256)
            try:
                q = type(good)(codes, scales, good.quantizer)
                check_quantized(q, "q", "s")
                assert np.isfinite(q.steps()).all()
            except AssetError:
                refused += 1
        assert 0 < refused < 500


def test_mutated_checkpoints_are_refused_or_the_same_model(rng, saved, tmp_path):
    folder = write_checkpoint(resolve(saved("gpt2")), tmp_path / "out", "int8")
    sha256, refused = read_checkpoint(folder).sha256, 0
    for file in ("cachequant.json", "model.safetensors"):
        good = (folder / file).read_bytes()
        for _ in range(150):
            (folder / file).write_bytes(mutate(rng, good))
            try:
                assert read_checkpoint(folder).sha256 == sha256
            except CachequantError:
                refused += 1
        (folder / file).write_bytes(good)
    assert refused > 200


def test_mutated_json_is_an_object_or_refused(rng):
    good = json.dumps({"format_version": 1, "scheme": "int8", "sha256": {"a": "b"}}).encode()
    refused = 0
    for _ in range(5_000):
        try:
            assert isinstance(strict_json(mutate(rng, good), "note"), dict)
        except AssetError:
            refused += 1
    assert 0 < refused < 5_000
