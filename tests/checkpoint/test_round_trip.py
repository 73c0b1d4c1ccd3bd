"""Checkpoints: the same bits as quantizing in memory, sizes, files, and what is refused."""

import json
import shutil

import numpy as np
import pytest

import cachequant as cq
from cachequant import schemes
from cachequant.assets import models
from cachequant.assets.materialize import materialize
from cachequant.checkpoint import write
from cachequant.checkpoint.layout import layout, shards
from cachequant.checkpoint.write import write_checkpoint
from cachequant.decoder.random import GPT2_SMALL
from cachequant.decoder.weights import tensor_shapes
from cachequant.errors import InputError
from helpers import TINY

IDS = list(range(3, 40))


def logits(model) -> np.ndarray:
    with model.session() as session:
        return session.extend(IDS, logits="all")


def assert_same_bits(folder, source, scheme, head=None):
    stored, memory = cq.load(folder), cq.load(source, scheme, head)
    assert stored.scheme == memory.scheme
    assert np.array_equal(logits(stored).view(np.uint32), logits(memory).view(np.uint32))


@pytest.mark.parametrize("name", TINY)
def test_every_family_gives_the_bits_of_quantizing_in_memory(saved, tmp_path, name):
    write_checkpoint(saved(name), tmp_path / "out", "int8", "int8-block32")
    assert_same_bits(tmp_path / "out", saved(name), "int8", "int8-block32")


@pytest.mark.parametrize(
    "scheme",
    [
        "bfp8",
        "int8-block32",
        "w8",
        "w8a12",
        "int8-tensor",
        "int8-hadamard",
        "int8-x32",
        "block16-snap4",
        "int8+head:int8",
    ],
)
def test_every_scheme_gives_the_bits_of_quantizing_in_memory(saved, tmp_path, scheme):
    write_checkpoint(saved("llama-gqa-tied"), tmp_path / "out", scheme)
    assert_same_bits(tmp_path / "out", saved("llama-gqa-tied"), scheme)


def test_shards_hold_the_same_tensors(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "SMALLEST_SHARD", 1)
    write_checkpoint(saved("gpt2"), tmp_path / "out", "int8", shard_size=20_000)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert_same_bits(tmp_path / "out", saved("gpt2"), "int8")


def test_shards_keep_order_and_size():
    files = shards(layout(GPT2_SMALL, schemes.get("int8")), 50_000_000)
    assert [name for file in files for name in file] == list(layout(GPT2_SMALL, schemes.get("int8")))
    assert all(sum(s.nbytes for s in file.values()) <= 50_000_000 or len(file) == 1 for file in files)
    assert all(files)


@pytest.mark.parametrize(
    ("scheme", "most"),
    [("int8", 0.489), ("int8+head:int8", 0.258), ("int8+head", 0.262)],
    ids=["layers", "all", "block"],
)
def test_sizes_at_the_shape_of_gpt2(scheme, most):
    stored = sum(s.nbytes for s in layout(GPT2_SMALL, schemes.get(scheme)).values())
    assert stored <= most * 4 * sum(int(np.prod(shape)) for shape in tensor_shapes(GPT2_SMALL).values())


def test_the_note_says_where_it_came_from(asset, tmp_path):
    source = asset("gpt2")
    seen = []
    folder = write_checkpoint(source, tmp_path / "out", "int8", progress=lambda *counts: seen.append(counts))
    note = json.loads((folder / "cachequant.json").read_text())
    assert (note["format_version"], note["scheme"], note["axis"]) == (1, "int8", 0)
    assert (note["source"]["sha256"], note["parameters"]) == (source.sha256, source.weights.parameters)
    assert list(note["sha256"]) == list(layout(source.config, schemes.get("int8")))
    assert seen[-1] == (len(source.weights), len(source.weights))


def test_tensors_are_mapped_and_a_copy_is_the_same_model(asset, tmp_path):
    write_checkpoint(asset("gpt2"), tmp_path / "out", "int8")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    first, second = models.resolve(tmp_path / "out"), models.resolve(tmp_path / "copy")
    assert first.sha256 == second.sha256 != asset("gpt2").sha256
    codes = first.weights["layers.0.attn.o.weight"].codes
    assert not codes.flags.owndata
    assert not codes.flags.writeable


@pytest.mark.parametrize(
    ("scheme", "message"),
    [("fp32", "leaves the layers in float32; allowed are int8"), ("int8-smooth", "is calibrated"), ("int7", "unknown")],
)
def test_schemes_that_cannot_be_stored_are_refused(asset, tmp_path, scheme, message):
    with pytest.raises(InputError, match=message):
        write_checkpoint(asset("gpt2"), tmp_path / "out", scheme)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(asset, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(InputError, match="is not an empty folder"):
        write_checkpoint(asset("gpt2"), tmp_path / "mine")
    with pytest.raises(InputError, match="shard size 5"):
        write_checkpoint(asset("gpt2"), tmp_path / "out", shard_size=5)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(write, "write_description", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_checkpoint(asset("gpt2"), tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_keeps_its_scheme(asset, tmp_path):
    folder = write_checkpoint(asset("gpt2"), tmp_path / "out", "int8")
    assert cq.load(folder, "int8").scheme.name == "int8"
    with pytest.raises(InputError, match="quantized as 'int8'; allowed is that"):
        cq.load(folder, "bfp8")
    for refused in (write_checkpoint, materialize):
        with pytest.raises(InputError, match="as 'int8'; allowed are float32 models"):
            refused(folder, tmp_path / "again")
