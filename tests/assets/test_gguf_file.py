"""Damaged and hostile GGUF files: a typed error in plain words, or a file that is read in bounds."""

import struct

import gguf
import numpy as np
import pytest

from cachequant.assets import models
from cachequant.assets.gguf import open_gguf
from cachequant.assets.gguf_file import GgufFile, GgufTensor, dequantize
from cachequant.errors import AssetError, CachequantError
from gguf_files import GPT2, LLAMA, write

NUMPY_WORDS = ("reshape", "buffer", "dtype", "mmap", "broadcast", "numpy", "ufunc", "operand", "Error")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def file(fields=(), tensors=(), data=b"", version=3, counts=None, magic=b"GGUF") -> bytes:
    """A file of raw (key, type, value bytes) and (name, shape, type, offset)."""
    n, k = counts or (len(tensors), len(fields))
    out = magic + struct.pack("<IQQ", version, n, k)
    for key, kind, value in fields:
        out += text(key) + struct.pack("<I", kind) + value
    for name, shape, kind, offset in tensors:
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
    return out + b"\0" * (-len(out) % 32) + data


FLOATS = ("x", (4,), 0, 0)
BAD = {
    "empty": (b"", "not a GGUF file: empty"),
    "magic": (file(magic=b"GGML"), "does not begin with 'GGUF'"),
    "version": (file(version=1), "GGUF version 1; allowed: 2, 3"),
    "byte order": (file(version=3 << 24), "in the byte order of other machines"),
    "too many tensors": (file(counts=(1 << 60, 0)), "truncated, or not a GGUF file: .* bytes expected"),
    "too many keys": (file(counts=(0, 1 << 60)), "truncated, or not a GGUF file"),
    "long key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(32), "truncated, or not a GGUF file: 46"),
    "long array": (file([("k", 9, struct.pack("<IQ", 4, 1 << 61))]), "truncated"),
    "long list of text": (file([("k", 9, struct.pack("<IQ", 8, 1 << 61))]), "truncated"),
    "nested array": (file([("k", 9, struct.pack("<IQ", 9, 1))]), "the value of k is of type 9"),
    "type of value": (file([("k", 77, b"")]), "the value of k is of type 77"),
    "key twice": (file([("k", 4, b"\1\0\0\0")] * 2), "k occurs twice"),
    "tensor twice": (file(tensors=[FLOATS, FLOATS], data=bytes(64)), "tensor 'x' occurs twice"),
    "not UTF-8": (file([("k", 8, struct.pack("<Q", 1) + b"\xff")]), "is not UTF-8"),
    "rank 0": (file(tensors=[("x", (), 0, 0)]), "tensor 'x' has 0 dimensions"),
    "rank 5": (file(tensors=[("x", (1,) * 5, 0, 0)], data=bytes(32)), "tensor 'x' has 5 dimensions"),
    "size 0": (file(tensors=[("x", (0,), 0, 0)]), r"tensor 'x' has shape \(0,\)"),
    "huge size": (file(tensors=[("x", (1 << 40, 1 << 40), 0, 0)]), "truncated: tensor 'x' ends at byte"),
    "half a block": (file(tensors=[("x", (33,), 8, 0)], data=bytes(64)), "Q8_0 needs rows of a multiple of 32"),
    "unknown type": (file(tensors=[("x", (4,), 999, 0)], data=bytes(32)), "tensor 'x' is of type 999; allowed: F32, F"),
    "offset": (file(tensors=[("x", (4,), 0, 1 << 62)], data=bytes(32)), "truncated: tensor 'x' ends"),
    "unaligned": (file(tensors=[("x", (4,), 0, 3)], data=bytes(32)), "expected a multiple of 32"),
    "overlap": (file(tensors=[FLOATS, ("y", (4,), 0, 0)], data=bytes(64)), "'y' starts at byte 0 .*overlap"),
    "alignment": (file([("general.alignment", 4, b"\3\0\0\0")]), "general.alignment is 3; allowed: powers of two"),
    "cut": (file(tensors=[FLOATS], data=bytes(15)), "truncated: tensor 'x' ends at byte 80 of 79"),
}


@pytest.mark.parametrize("case", BAD)
def test_hostile_files_are_refused_in_plain_words(tmp_path, case):
    data, message = BAD[case]
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(AssetError, match=message) as caught:
        GgufFile(tmp_path / "m.gguf")
    assert not any(word in str(caught.value) for word in NUMPY_WORDS)


def test_the_package_reads_the_same(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA, gguf.GGMLQuantizationType.Q4_0)
    ours, theirs = GgufFile(tmp_path / "m.gguf"), gguf.GGUFReader(tmp_path / "m.gguf")
    assert ours.fields == {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(found.data, tensor.data.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("kind", ["I8", "Q8_K", "I64"])
def test_a_type_that_cannot_be_dequantized_is_named(kind):
    kind = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    tensor = GgufTensor("blk.0.x", kind, (2, block), np.zeros(2 * size, np.uint8))
    with pytest.raises(AssetError, match=f"tensor 'blk.0.x' is of type {kind.name}; allowed: F32, F16, .*Q8_0"):
        dequantize(tensor)


def test_mutated_files_are_refused_or_read(cache, tmp_path, rng):
    write(tmp_path / "good.gguf", LLAMA, gguf.GGMLQuantizationType.Q8_0)
    good = (tmp_path / "good.gguf").read_bytes()
    head = good.index(b"blk.1.ffn_down.weight") + 100  # metadata and table of tensors
    refused = 0
    for i in range(240):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(head))] = int(rng.integers(256))
        (tmp_path / f"m{i}.gguf").write_bytes(bytes(data[: int(rng.integers(40, len(data)))] if i % 8 == 0 else data))
        try:
            found = open_gguf(tmp_path / f"m{i}.gguf")
            found.read("embed.weight")
        except CachequantError as error:
            refused += 1
            assert not any(word in str(error) for word in ("reshape", "ufunc", "operands", "buffer")), error
        (tmp_path / f"m{i}.gguf").unlink()
    assert 60 < refused < 240


ODD = (
    0, 1, -1, 7, 1 << 40, True, 1.5, -2.0, float("nan"), "", "x", "llama", "gpt2", "none", "linear", [], [1], [1.5],
    ["a"], ["a b"], ["a", "b"], ["a "], ["zz yy"], [3] * 96, "\0",
)  # fmt: skip


def encoded(value) -> tuple[int, bytes]:
    """Type and bytes of a metadata value."""
    if isinstance(value, list):
        kind, data = (4, b"") if not value else (encoded(value[0])[0], b"".join(encoded(v)[1] for v in value))
        return 9, struct.pack("<IQ", kind, len(value)) + data
    if isinstance(value, str):
        return 8, text(value)
    kinds = {bool: (7, "<?"), int: (11, "<q"), float: (12, "<d")}
    kind, form = kinds[type(value)]
    return kind, struct.pack(form, value)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_mutated_metadata_is_refused_or_read(cache, tmp_path, rng, config):
    write(tmp_path / "good.gguf", config, gguf.GGMLQuantizationType.Q8_0)
    good, refused = GgufFile(tmp_path / "good.gguf"), 0
    tensors, data = [], b""
    for name, tensor in good.tensors.items():
        tensors.append((name, tensor.shape[::-1], tensor.kind, len(data)))
        data += tensor.data.tobytes() + b"\0" * (-len(tensor.data) % 32)
    for i in range(200):
        fields = dict(good.fields)
        for _ in range(int(rng.integers(1, 3))):
            key = list(fields)[int(rng.integers(len(fields)))]
            if rng.integers(5):
                fields[key] = ODD[int(rng.integers(len(ODD)))]
            else:
                del fields[key]
        path = tmp_path / f"m{i}.gguf"
        path.write_bytes(file([(key, *encoded(value)) for key, value in fields.items()], tensors, data))
        try:
            found = open_gguf(path)
            found.read("embed.weight")
        except CachequantError:
            refused += 1
        path.unlink()
    assert 100 < refused < 200


def test_models_are_refused_by_the_same_words(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA)
    whole = (tmp_path / "m.gguf").read_bytes()
    for length in (0, 3, 20, 500, len(whole) // 2, len(whole) - 100):
        (tmp_path / "m.gguf").write_bytes(whole[:length])
        with pytest.raises(AssetError) as caught:
            models.resolve(tmp_path / "m.gguf")
        assert not any(word in str(caught.value) for word in NUMPY_WORDS)
