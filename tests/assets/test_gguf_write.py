"""GGUF files that are written give the weights back: exactly in float32, within half a step in Q8_0."""

import gguf
import numpy as np
import pytest

import helpers
from cachequant.assets import gguf as reader
from cachequant.assets import gguf_write, models
from cachequant.assets.gguf_file import GgufFile, dequantize
from cachequant.assets.names import gguf_name
from cachequant.errors import InputError


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Writes one of the tiny checkpoints and reads its fields and tensors."""
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))

    def run(name, kind):
        asset = models.resolve(helpers.checkpoint(name, str(tmp_path)))
        gguf_write.write_gguf(asset, tmp_path / "m.gguf", kind)
        found = GgufFile(tmp_path / "m.gguf")
        return asset, found.fields, found.tensors

    return run


@pytest.mark.parametrize("kind", gguf_write.KINDS)
@pytest.mark.parametrize("name", ["gpt2", "llama-odd-heads-untied", "llama-biases", "llama-linear-rope"])
def test_configuration_and_weights_come_back(name, kind, read):
    asset, fields, tensors = read(name, kind)
    config = reader.read_config(fields, tensors)
    for field in ("family", "vocab", "width", "layers", "heads", "kv_heads", "head_dim", "ffn", "tied", "rope_theta"):
        assert getattr(config, field) == getattr(asset.config, field), field
    heads = {"q": config.heads, "k": config.kv_heads}
    for canonical in asset.weights:
        stored = tensors[gguf_name(config, canonical)]
        back = dequantize(stored)
        if part := heads.get(canonical.rsplit(".", 2)[1]):
            back = reader.unpermute(back, part)
        step = np.abs(asset.weights[canonical]).max() / 127
        exact = stored.kind == gguf.GGMLQuantizationType.F32
        assert np.abs(back - asset.weights[canonical]).max() <= (0 if exact else 0.51 * step), canonical


def test_q8_0_codes_the_matrices_whose_rows_are_whole_blocks(monkeypatch, tmp_path, read):
    wide = helpers.GPT2 | dict(n_embd=64, n_head=4)
    monkeypatch.setitem(helpers.TINY, "gpt2-wide", wide)
    _, _, tensors = read("gpt2-wide", "q8_0")
    coded = {name for name, t in tensors.items() if t.kind == gguf.GGMLQuantizationType.Q8_0}
    assert {"token_embd.weight", "blk.0.attn_qkv.weight", "blk.1.ffn_down.weight"} <= coded
    assert not {"position_embd.weight", "blk.0.attn_qkv.bias", "output_norm.weight"} & coded


def test_permutation_is_undone_by_the_reader(rng):
    tensor = rng.standard_normal((24, 5))
    assert np.array_equal(reader.unpermute(gguf_write.permute(tensor, 3), 3), tensor)


def test_another_kind_is_refused(tmp_path):
    with pytest.raises(InputError, match="'q5_k'; allowed: f32, q8_0"):
        gguf_write.write_gguf(None, tmp_path / "m.gguf", "q5_k")
