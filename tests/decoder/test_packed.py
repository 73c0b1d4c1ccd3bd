"""Packed matrices that are kept in the cache folder: the same bits read as packed, and never trusted when damaged."""

import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import cachequant as cq
from cachequant import kernels, schemes
from cachequant.assets import cachedir, models
from cachequant.checkpoint.write import write_checkpoint
from cachequant.cli import cache as command
from cachequant.decoder import forward, packed
from cachequant.errors import InputError

IDS = [5, 77, 3, 100, 8, 8, 41]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder with nothing but the compiled kernels."""
    compiled = kernels.cache_folder().parent
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(compiled, target_is_directory=True)
    monkeypatch.delenv(packed.VARIABLE, raising=False)
    return tmp_path / "cache"


def logits(model):
    with model.session() as session:
        return session.extend(IDS, "all").view(np.uint32)


def kept():
    return [entry for entry in cachedir.entries() if entry.kind == "packed"]


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """Whether each load so far took its matrices from a file."""
    seen = []

    def spy(self, real=packed.PackedStore.open):
        found = real(self)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(packed.PackedStore, "open", spy)
    return seen


def refuse(*_):
    raise AssertionError("packed again")


@pytest.mark.parametrize("shape", ["gpt2", "llama-gqa-tied", "llama-biases"])
@pytest.mark.parametrize("scheme", ["fp32", "int8", "bfp8+head", "q8_0+head:int8", "w8a12", "w8", "row-snap4"])
def test_kept_matrices_give_the_bits_of_packed_ones(shape, scheme, saved, cache, monkeypatch, opened):
    first = cq.load(saved(shape), scheme)
    monkeypatch.setattr(forward, "pack", refuse)
    monkeypatch.setattr(forward, "pack_head", refuse)
    second = cq.load(saved(shape), scheme)
    assert opened == [False, True]
    assert second.weight_bytes == first.weight_bytes
    for name, linear in first._decoder.linears.items():
        other = second._decoder.linears[name]
        for kind in ("values", "scales"):
            np.testing.assert_array_equal(getattr(linear.weight, kind), getattr(other.weight, kind))
        assert other.weight.address % 64 == other.weight.scale_address % 64 == 0
        assert linear.activation == other.activation
    assert np.array_equal(logits(first), logits(second))


@pytest.mark.parametrize("scheme", ["int8-hadamard", "int8-smooth"])
def test_bases_come_back(scheme, saved, cache, monkeypatch, opened):
    first = cq.load(saved("llama-coded"), scheme)
    monkeypatch.setattr(forward, "pack", refuse)
    second = cq.load(saved("llama-coded"), scheme)
    assert opened[-1]
    assert np.array_equal(logits(first), logits(second))


def test_other_schemes_and_models_have_other_files(saved, cache, opened):
    for shape in ("gpt2", "llama-gqa-tied"):
        for scheme in ("int8", "int8+head", "bfp8"):
            cq.load(saved(shape), scheme)
    assert len(kept()) == 6 and not any(opened)
    cq.load(saved("gpt2"), "row-exact")  # int8 by another name
    assert opened[-1]


def flip(folder):
    content = bytearray((folder / "weights.safetensors").read_bytes())
    content[-100] ^= 1
    (folder / "weights.safetensors").write_bytes(content)


def cut(folder):
    content = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(content[:-64])


def rename_model(folder):
    note = json.loads((folder / "source.json").read_text())
    note["key"]["sha256"] = "0" * 64
    (folder / "source.json").write_text(json.dumps(note))


def swap(folder):
    """The whole folder of another scheme under this one's name."""
    other = next(e.path for e in kept() if e.path != folder)
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


DAMAGE = {
    "a bit": flip,
    "its end": cut,
    "its note": lambda folder: (folder / "source.json").write_text("[]"),
    "no note": lambda folder: (folder / "source.json").unlink(),
    "no weights": lambda folder: (folder / "weights.safetensors").unlink(),
    "another model": rename_model,
    "another scheme": swap,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_made_again(damage, saved, cache, opened):
    good = logits(cq.load(saved("gpt2"), "int8"))
    folder = kept()[0].path
    cq.load(saved("gpt2"), "bfp8")
    DAMAGE[damage](folder)
    with pytest.warns(UserWarning, match="made again"):
        again = cq.load(saved("gpt2"), "int8")
    assert not opened[-1]
    assert np.array_equal(logits(again), good)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = cq.load(saved("gpt2"), "int8")
    assert opened[-1]
    assert np.array_equal(logits(after), good)


def test_a_copied_cache_folder_is_used_after_its_hash_was_checked(saved, cache, monkeypatch, tmp_path, opened):
    good = logits(cq.load(saved("gpt2"), "int8"))
    shutil.copytree(cache, tmp_path / "copy", symlinks=True)
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "copy"))
    hashed = []
    monkeypatch.setattr(packed, "sha256_file", lambda path, real=packed.sha256_file: hashed.append(path) or real(path))
    model = cq.load(saved("gpt2"), "int8")
    assert opened[-1] and len(hashed) == 1
    assert np.array_equal(logits(model), good)


def test_a_full_disk_is_no_error(saved, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    models.resolve(saved("gpt2"))
    monkeypatch.setattr(packed.TensorWriter, "close", full)
    assert cq.load(saved("gpt2"), "int8").weight_bytes
    assert kept() == []


def test_a_folder_that_cannot_be_written_is_no_error(saved, cache, opened):
    cq.load(saved("gpt2"), "int8")
    shutil.rmtree(cache / "packed")
    (cache / "packed").write_text("in the way")
    cq.load(saved("gpt2"), "int8")
    assert not any(opened)


def test_none_are_kept_where_nobody_wants_them(saved, cache, monkeypatch, opened):
    cq.load(saved("gpt2"), "int8")
    monkeypatch.setenv(packed.VARIABLE, "0")
    for scheme in ("int8", "bfp8"):
        cq.load(saved("gpt2"), scheme)
    assert len(kept()) == 1 and not any(opened)


@pytest.mark.parametrize("value", ["", "many", "-1", "nan", "inf"])
def test_the_size_is_a_number(value, saved, cache, monkeypatch):
    monkeypatch.setenv(packed.VARIABLE, value)
    with pytest.raises(InputError, match=f"CACHEQUANT_PACKED={value!r}.*4.0, or 0"):
        cq.load(saved("gpt2"), "int8")


def test_what_was_used_longest_ago_makes_room(saved, cache, monkeypatch, opened):
    for scheme in ("int8", "bfp8", "int8"):
        cq.load(saved("gpt2"), scheme)
    monkeypatch.setenv(packed.VARIABLE, str(2.5e-9 * max(entry.bytes for entry in kept())))
    cq.load(saved("gpt2"), "w8a12")
    monkeypatch.setenv(packed.VARIABLE, "1")
    opened.clear()
    for scheme in ("int8", "w8a12", "bfp8"):
        cq.load(saved("gpt2"), scheme)
    assert opened == [True, True, False]


def test_what_is_larger_than_all_of_the_room_removes_nothing(saved, cache, monkeypatch):
    cq.load(saved("gpt2"), "int8")
    monkeypatch.setenv(packed.VARIABLE, "1e-6")
    cq.load(saved("gpt2"), "bfp8")
    assert len(kept()) == 1


def test_checkpoints_hold_codes_already(saved, cache, tmp_path):
    folder = write_checkpoint(models.resolve(saved("gpt2")), tmp_path / "coded", schemes.get("int8"))
    cq.load(folder)
    assert kept() == []


def test_they_are_listed_by_model_and_scheme(saved, cache):
    cq.load(saved("gpt2"), "int8+head")
    (entry,) = [e for e in command._describe(cache, cachedir.entries())["entries"] if e["kind"] == "packed"]
    assert (entry["model"], entry["scheme"]) == ("gpt2", "int8+head")
    assert kept()[0].name.startswith("gpt2 int8+head (")
    assert [e.kind for e in cachedir.clear(["packed"])] == ["packed"]


LOAD = """
import sys, cachequant as cq
with cq.load(sys.argv[1], "int8").session() as session:
    print(session.extend([5, 77, 3]).tobytes().hex())
"""


def test_processes_may_pack_the_same_model_at_once(saved, cache):
    running = [
        subprocess.Popen([sys.executable, "-c", LOAD, saved("gpt2")], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(outputs) == 1
    assert len(kept()) == 1
