"""Checkpoint folders as transformers and others write them."""

import json

import numpy as np
import pytest
import safetensors.numpy

from cachequant.assets import hf_folder, models, store
from cachequant.assets.names import hf_name, is_conv1d
from cachequant.errors import AssetError, ConfigError, NumericsError
from helpers import TINY, transformers_model

torch = pytest.importorskip("torch")


@pytest.fixture
def saved(cache, tmp_path):
    """Write the tiny model of a name and return its folder."""

    def save(name, **options):
        folder = tmp_path / name
        transformers_model(name).save_pretrained(folder, **options)
        return folder

    return save


def expected(name, config):
    state = transformers_model(name).state_dict()
    tensors = {key: state[hf_name(config, key)].numpy() for key in hf_folder.tensor_shapes(config)}
    return {key: tensor.T if is_conv1d(config, key) else tensor for key, tensor in tensors.items()}


def rewrite(folder, change):
    """Change the tensors of a checkpoint."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in safetensors.numpy.load_file(file).items()}
    safetensors.numpy.save_file(change(tensors), file)


@pytest.mark.parametrize("name", TINY)
def test_tensors_are_those_of_transformers(saved, name):
    asset = models.resolve(saved(name))
    want = expected(name, asset.config)
    assert list(asset.weights) == list(want)
    assert all(np.array_equal(asset.weights[key], want[key]) for key in want)
    assert (asset.name, asset.tokenizer, asset.random) == (name, None, False)


def test_shards_are_joined(saved):
    folder = saved("llama-odd-heads-untied", max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    asset = models.resolve(folder)
    want = expected("llama-odd-heads-untied", asset.config)
    assert all(np.array_equal(asset.weights[key], want[key]) for key in want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_widens_exactly(cache, tmp_path, dtype):
    model = transformers_model("llama-biases").to(dtype)
    model.save_pretrained(tmp_path / "half")
    asset = models.resolve(tmp_path / "half")
    want = model.state_dict()["model.layers.1.self_attn.k_proj.weight"].to(torch.float32).numpy()
    assert np.array_equal(asset.weights["layers.1.attn.k.weight"], want)


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa-tied"])
def test_names_without_the_prefix_and_old_buffers(saved, name):
    folder = saved(name)
    want = dict(models.resolve(folder).weights)
    old = {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8), "h.0.attn.masked_bias": np.zeros((), np.float32)}
    if name != "gpt2":
        old = {"layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    rewrite(folder, lambda tensors: {hf_folder._strip(key): value for key, value in tensors.items()} | old)
    found = models.resolve(folder).weights
    assert all(np.array_equal(found[key], want[key]) for key in want)


def test_a_pickle_is_read_with_weights_only(saved):
    folder = saved("gpt2")
    want = dict(models.resolve(folder).weights)
    (folder / "model.safetensors").unlink()
    torch.save(transformers_model("gpt2").state_dict(), folder / "pytorch_model.bin")
    found = models.resolve(folder).weights
    assert all(np.array_equal(found[key], want[key]) for key in want)


def test_a_pickle_that_would_run_code_is_refused(saved, tmp_path):
    class Attack:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = saved("gpt2")
    (folder / "model.safetensors").unlink()
    torch.save({"x": Attack()}, folder / "pytorch_model.bin")
    with pytest.raises(AssetError, match="cannot be read as plain weights"):
        models.resolve(folder)
    assert not (tmp_path / "ran").exists()


def test_ends_of_a_text_come_from_the_generation_configuration(saved):
    folder = saved("gpt2")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert models.resolve(folder).config.eos_ids == (5, 7)


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("chat_template.jinja", "T"),
        ("tokenizer_config.json", json.dumps({"chat_template": "T"})),
        ("tokenizer_config.json", json.dumps({"chat_template": [{"name": "default", "template": "T"}]})),
    ],
    ids=["file", "field", "list"],
)
def test_chat_templates(saved, file, value):
    folder = saved("gpt2")
    (folder / file).write_text(value)
    assert models.resolve(folder).chat_template == "T"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if "ln_f.bias" not in k}, AssetError, "'final_norm.bias' .* is missing"),
        (lambda t: t | {"transformer.extra": np.ones(3, np.float32)}, AssetError, "unexpected tensor 'extra'"),
        (lambda t: t | {"transformer.wpe.weight": np.ones((40, 96), np.float32)}, AssetError, "'positions.weight' has"),
        (lambda t: t | {"wte.weight": t["transformer.wte.weight"]}, AssetError, "both with and without a prefix"),
        (lambda t: t | {"transformer.h.1.mlp.c_fc.bias": np.full(160, np.nan, np.float32)}, NumericsError,
         r"layers.1.mlp.up.bias\[0\] is nan"),
        (lambda t: t | {"transformer.wte.weight": t["transformer.wte.weight"].astype(np.int32)}, AssetError, "is I32"),
    ],
    ids=["missing", "unexpected", "shape", "prefix", "nan", "integers"],
)  # fmt: skip
def test_wrong_tensors_are_refused_by_name_and_leave_nothing(saved, cache, change, error, message):
    folder = saved("gpt2")
    rewrite(folder, change)
    with pytest.raises(error, match=message):
        models.resolve(folder)
    assert not list((cache / "models").glob("*"))


def test_a_changed_checkpoint_is_another_model(saved):
    folder = saved("gpt2")
    first = models.resolve(folder)
    rewrite(folder, lambda tensors: tensors | {"transformer.ln_f.bias": np.ones(40, np.float32)})
    second = models.resolve(folder)
    assert first.sha256 != second.sha256
    assert second.weights["final_norm.bias"].max() == 1


def test_folders_that_are_no_checkpoints_are_refused(cache, tmp_path):
    with pytest.raises(AssetError, match="no file .*config.json|holds no weights"):
        models.resolve(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(AssetError, match="config.json: not a JSON object"):
        models.resolve(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY["gpt2"]))
    with pytest.raises(AssetError, match="holds no weights"):
        models.resolve(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(AssetError, match="not a JSON object"):
        models.resolve(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="model_type is 'bert'"):
        models.resolve(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({}, "weight_map is missing or empty"),
        ({"a": "../secret.safetensors"}, "'../secret.safetensors' is not a file beside it"),
        ({"a": "gone.safetensors"}, "'gone.safetensors' is not a file beside it"),
    ],
    ids=["empty", "outside", "gone"],
)
def test_wrong_indexes_are_refused(saved, weight_map, message):
    folder = saved("gpt2")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(AssetError, match=message):
        models.resolve(folder)


def test_changed_weights_do_not_verify(saved, cache):
    asset = models.resolve(saved("gpt2"))
    store.verify(asset.sha256)
    data = bytearray(asset.weights.path.read_bytes())
    data[-1] ^= 1
    asset.weights.path.write_bytes(data)
    with pytest.raises(AssetError, match="weights.safetensors has sha256 .*, expected .*remove that folder"):
        store.verify(asset.sha256)


def test_a_damaged_conversion_is_noticed(saved, cache):
    folder = saved("gpt2")
    models.resolve(folder)
    (converted,) = (cache / "models").glob("*/weights.safetensors")
    converted.write_bytes(converted.read_bytes()[:-4])
    with pytest.raises(AssetError, match="truncated.*remove that folder and try again"):
        models.resolve(folder)
