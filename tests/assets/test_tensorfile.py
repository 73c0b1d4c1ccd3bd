import json

import numpy as np
import pytest
import safetensors.numpy

from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.errors import AssetError

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1.5, -2], np.float16)}


def write(path, tensors=TENSORS, metadata=()):
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.int8): "I8"}
    writer = TensorWriter(path, {n: (names[t.dtype], t.shape) for n, t in tensors.items()}, dict(metadata))
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    return writer.close()


def with_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_the_reference_library_reads_what_is_written(tmp_path):
    write(tmp_path / "f", metadata={"k": "v"})
    read = safetensors.numpy.load_file(tmp_path / "f")
    assert all(np.array_equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_what_the_reference_library_writes_is_read(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / "f", {"k": "v"})
    file = TensorFile(tmp_path / "f")
    assert file.metadata == {"k": "v"}
    assert all(np.array_equal(file.raw(name), tensor) for name, tensor in TENSORS.items())
    assert file.float32("b").dtype == np.float32


def test_the_hash_is_that_of_the_file_and_tensors_start_on_a_cache_line(tmp_path):
    from cachequant.assets.hashing import sha256_file

    assert write(tmp_path / "f") == sha256_file(tmp_path / "f")
    assert TensorFile(tmp_path / "f").tensors["a"].start % 64 == 0


def test_bfloat16_widens_exactly(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensor = torch.randn(5, 7).to(torch.bfloat16)
    save_file({"x": tensor}, tmp_path / "f")
    assert np.array_equal(TensorFile(tmp_path / "f").float32("x"), tensor.to(torch.float32).numpy())


def test_views_are_read_only_and_mapped(tmp_path):
    write(tmp_path / "f")
    tensor = TensorFile(tmp_path / "f").float32("a")
    assert not tensor.flags.owndata
    with pytest.raises(ValueError):
        tensor[0, 0] = 1


def test_every_truncation_is_refused(tmp_path):
    write(tmp_path / "f")
    whole = (tmp_path / "f").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "f").write_bytes(whole[:length])
        with pytest.raises(AssetError):
            TensorFile(tmp_path / "f")


def test_trailing_bytes_are_refused(tmp_path):
    write(tmp_path / "f")
    with open(tmp_path / "f", "ab") as file:
        file.write(b"\0")
    with pytest.raises(AssetError, match="trailing bytes"):
        TensorFile(tmp_path / "f")


def test_duplicate_names_are_refused_though_the_reference_library_takes_them(tmp_path):
    entry = b'{"dtype":"I8","shape":[1],"data_offsets":[%d,%d]}'
    header = b'{"a":' + entry % (0, 1) + b',"a":' + entry % (1, 2) + b"}"
    with pytest.raises(AssetError, match="names 'a' twice"):
        TensorFile(with_header(tmp_path / "f", header, b"\0\1"))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "Q9", "shape": [1], "data_offsets": [0, 1]},
        {"dtype": "I8", "shape": [-1], "data_offsets": [0, 1]},
        {"dtype": "I8", "shape": [True], "data_offsets": [0, 1]},
        {"dtype": "I8", "shape": [2], "data_offsets": [0, 1]},
        {"dtype": "I8", "shape": [1], "data_offsets": [1, 0]},
        {"dtype": "I8", "shape": [1], "data_offsets": [0, 1], "more": 1},
        {"dtype": "I8", "shape": [1]},
        [1],
    ],
    ids=lambda entry: json.dumps(entry)[:40],
)
def test_entries_that_are_not_valid_are_refused_by_name(tmp_path, entry):
    with pytest.raises(AssetError, match="tensor 'x'"):
        TensorFile(with_header(tmp_path / "f", {"x": entry}, b"\0"))


@pytest.mark.parametrize("places", [((0, 2), (1, 3)), ((0, 1), (2, 3))], ids=["overlap", "gap"])
def test_overlaps_and_gaps_are_refused(tmp_path, places):
    header = {
        name: {"dtype": "I8", "shape": [end - start], "data_offsets": [start, end]}
        for name, (start, end) in zip("ab", places, strict=True)
    }
    with pytest.raises(AssetError, match="gap or overlap"):
        TensorFile(with_header(tmp_path / "f", header, b"\0\0\0"))


@pytest.mark.parametrize("header", [b"[]", b"{", b"\xff\xff", b'{"__metadata__":{"a":1}}', b"[" * 100_000])
def test_headers_that_are_not_such_are_refused(tmp_path, header):
    with pytest.raises(AssetError):
        TensorFile(with_header(tmp_path / "f", header))


def test_mutated_files_raise_nothing_else(tmp_path, rng):
    write(tmp_path / "f", metadata={"k": "v"})
    whole = np.frombuffer((tmp_path / "f").read_bytes(), np.uint8)
    refused = 0
    header = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    for _ in range(3000):
        changed = whole.copy()
        places = rng.integers(0, header, size=rng.integers(1, 4))
        changed[places] = rng.integers(0, 256, size=len(places))
        (tmp_path / "f").write_bytes(changed.tobytes())
        try:
            file = TensorFile(tmp_path / "f")
            assert all(file.raw(name).size >= 0 for name in file.tensors)
        except AssetError:
            refused += 1
    assert refused > 1500


def test_integers_are_not_weights(tmp_path):
    write(tmp_path / "f", {"codes": np.zeros((2, 2), np.int8)})
    with pytest.raises(AssetError, match="'codes' is I8; allowed: F64, F32"):
        TensorFile(tmp_path / "f").float32("codes")


def test_a_missing_file_is_an_asset_error(tmp_path):
    with pytest.raises(AssetError, match="nothing"):
        TensorFile(tmp_path / "nothing")
