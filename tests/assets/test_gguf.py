"""GGUF files written here with the gguf package, in each quantization that NumPy can make."""

import gguf
import numpy as np
import pytest

from cachequant.assets import gguf as reader
from cachequant.assets import models
from cachequant.decoder.config import Llama3Scaling
from cachequant.decoder.random import random_weights
from cachequant.decoder.rope import inverse_frequencies
from cachequant.errors import AssetError, ConfigError
from gguf_files import GPT2, LLAMA, Q8_0, QWEN2, permute, write


def test_undoing_the_permutation_gives_the_tensor_back(rng):
    for shape in ((24, 5), (24,)):
        tensor = rng.standard_normal(shape)
        assert np.array_equal(reader.unpermute(permute(tensor, 3), 3), tensor)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_each_type_is_read(cache, tmp_path, kind):
    want = write(tmp_path / "m.gguf", LLAMA, gguf.GGMLQuantizationType[kind])
    asset = models.resolve(tmp_path / "m.gguf")
    assert asset.config == LLAMA
    assert list(asset.weights) == list(want)
    assert all(np.array_equal(asset.weights[name], want[name]) for name in want)
    assert all(tensor.dtype == np.float32 and tensor.flags.c_contiguous for tensor in asset.weights.values())
    exact = random_weights(LLAMA)["layers.0.attn.q.weight"]
    assert np.abs(asset.weights["layers.0.attn.q.weight"] - exact).max() < 0.2 * np.abs(exact).max()


@pytest.mark.parametrize(("config", "architecture"), [(QWEN2, "qwen2"), (GPT2, "gpt2")], ids=["qwen2", "gpt2"])
def test_other_families(cache, tmp_path, config, architecture):
    want = write(tmp_path / "m.gguf", config, Q8_0, architecture)
    asset = models.resolve(tmp_path / "m.gguf")
    assert asset.config == config
    assert all(np.array_equal(asset.weights[name], want[name]) for name in want)


def test_what_comes_with_the_weights(cache, tmp_path):
    write(tmp_path / "small-one.gguf", LLAMA)
    asset = models.resolve(str(tmp_path / "small-one.gguf"))
    assert (asset.name, asset.random, asset.chat_template) == ("small-one", False, "{{ messages }}")
    assert asset.origin["format"] == "gguf"
    assert (asset.tokenizer.eos_ids, asset.tokenizer.bos_id) == ((2,), 1)
    ids = asset.tokenizer.encode("ab12<end>")
    assert [asset.tokenizer.token(i) for i in ids] == ["ab", "1", "2", "<end>"]


def test_a_second_end_of_text_counts(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA, fields=[("add_eot_token_id", 95)])
    assert models.resolve(tmp_path / "m.gguf").config.eos_ids == (2, 95)


def test_a_tied_head_is_recognized(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA, skip=["head.weight"])
    assert models.resolve(tmp_path / "m.gguf").config.tied


def test_llama3_factors_become_the_rule(cache, tmp_path):
    scaling = Llama3Scaling(32.0, 1.0, 4.0, 8192)
    plain, scaled = (inverse_frequencies(LLAMA.head_dim, LLAMA.rope_theta, rule) for rule in (None, scaling))
    factors = (plain / scaled).astype(np.float32)
    write(tmp_path / "m.gguf", LLAMA, extra=[("rope_freqs.weight", factors)])
    assert models.resolve(tmp_path / "m.gguf").config.rope_scaling == scaling
    write(tmp_path / "n.gguf", LLAMA, extra=[("rope_freqs.weight", np.linspace(1, 9, 8, dtype=np.float32))])
    with pytest.raises(ConfigError, match="rope_freqs.weight does not follow"):
        models.resolve(tmp_path / "n.gguf")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("add_sliding_window", 32)], "llama.attention.sliding_window is 32"),
        ([("add_expert_count", 8)], "llama.expert_count is 8"),
        ([("add_rope_scaling_type", gguf.RopeScalingType.YARN)], "rope.scaling.type is 'yarn'; allowed: 'none', "),
        ([("add_key_length", 8)], "rope.dimension_count is 16; allowed: the head size 8"),
    ],
    ids=["sliding window", "experts", "yarn", "partial rotary"],
)  # fmt: skip
def test_options_that_are_not_handled_are_refused(cache, tmp_path, fields, message):
    write(tmp_path / "m.gguf", LLAMA, fields=fields)
    with pytest.raises(ConfigError, match=message):
        models.resolve(tmp_path / "m.gguf")


def test_other_architectures_are_refused(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA, architecture="qwen3")
    with pytest.raises(ConfigError, match="general.architecture is 'qwen3'; allowed: gpt2, llama, qwen2"):
        models.resolve(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'; allowed: gpt2, llama"),
        ({"tokenizer.ggml.model": "llama"}, "lacks tokenizer.ggml.scores"),
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'; allowed: .*smollm"),
        ({"tokenizer.ggml.merges": None}, "lacks tokenizer.ggml.merges"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "1 entries of tokenizer.ggml.tokens occur twice"),
    ],
    ids=["model", "scores", "pre", "merges", "twice"],
)
def test_tokenizers_that_are_not_handled_are_refused(changes, message):
    from cachequant.assets.gguf_tokenizer import build_tokenizer

    fields = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }  # fmt: skip
    build_tokenizer(fields)
    with pytest.raises(ConfigError, match=message):
        build_tokenizer({key: value for key, value in (fields | changes).items() if value is not None})


def test_missing_and_unexpected_tensors_are_refused(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA, skip=["layers.1.mlp.up.weight"])
    with pytest.raises(AssetError, match="'layers.1.mlp.up.weight' of shape .* is missing"):
        models.resolve(tmp_path / "m.gguf")
    write(tmp_path / "n.gguf", LLAMA, extra=[("blk.0.attn_q_norm.weight", np.ones(16, np.float32))])
    with pytest.raises(AssetError, match="unexpected tensor 'blk.0.attn_q_norm.weight'"):
        models.resolve(tmp_path / "n.gguf")


def test_damaged_files_are_refused_and_leave_nothing(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA)
    whole = (tmp_path / "m.gguf").read_bytes()
    for length in (0, 3, 20, 500, len(whole) // 2, len(whole) - 100):
        (tmp_path / "m.gguf").write_bytes(whole[:length])
        with pytest.raises((AssetError, ConfigError)):
            models.resolve(tmp_path / "m.gguf")
    assert not list((cache / "models").glob("*"))


def test_a_missing_file_is_an_asset_error(tmp_path):
    with pytest.raises(AssetError, match="no model .*nothing.gguf"):
        models.resolve(tmp_path / "nothing.gguf")
