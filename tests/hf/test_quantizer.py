"""transformers: quantizing on load and in place, saving, reloading, and the same files as `cachequant quantize`."""

import copy
import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

import cachequant as cq
from cachequant.assets.tensorfile import TensorFile
from cachequant.checkpoint.write import write_checkpoint
from cachequant.errors import AssetError, CachequantError, InputError, NumericsError
from helpers import transformers_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from cachequant.hf import CacheQuantConfig, QuantizedEmbedding, QuantizedLinear, quantize_  # noqa: E402
from cachequant.hf.quantizer import CacheQuantizer  # noqa: E402

IDS = torch.arange(3, 40)[None]
Auto = transformers.AutoModelForCausalLM


def load(folder, *arguments, **more):
    if arguments:
        more["quantization_config"] = CacheQuantConfig(*arguments)
    return Auto.from_pretrained(folder, **more)


def logits(model) -> np.ndarray:
    with torch.inference_mode():
        return model(IDS).logits.numpy()


def same(a, b) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def stored(folder) -> dict:
    """{name: (bytes, shape)} of every tensor of a folder."""
    files = [TensorFile(path) for path in sorted(folder.glob("*.safetensors"))]
    return {n: (f.raw(n).tobytes(), f.tensors[n].dtype, f.tensors[n].shape) for f in files for n in f.tensors}


CASES = [
    ("gpt2", "int8", None),
    ("gpt2", "int8", "int8"),
    ("llama-gqa-tied", "int8", "int8-block32"),
    ("llama-odd-heads-untied", "bfp8", "int8"),
    ("llama-biases", "int8-block32", None),
    ("qwen2", "w8a12", None),
    ("gpt2", "int8-hadamard", None),
    ("llama-gqa-tied", "block16-snap4", None),
    ("gpt2", "int8-tensor", None),
    ("llama3-rope", "w8", "int8"),
]


@pytest.mark.parametrize(("name", "scheme", "head"), CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_one_checkpoint_whoever_wrote_it(saved, tmp_path, name, scheme, head):
    model = load(saved(name), scheme, head)
    truth = logits(model)
    assert same(truth, logits(quantize_(transformers_model(name), scheme, head)))
    model.save_pretrained(tmp_path / "theirs")
    write_checkpoint(saved(name), tmp_path / "ours", scheme, head)
    assert stored(tmp_path / "theirs") == stored(tmp_path / "ours")
    for folder in ("theirs", "ours"):
        assert same(truth, logits(load(tmp_path / folder)))
    opened, memory = cq.load(tmp_path / "theirs"), cq.load(saved(name), scheme, head)
    assert opened.scheme == memory.scheme
    with opened.session() as a, memory.session() as b:
        assert same(a.extend(IDS[0].tolist(), logits="all"), b.extend(IDS[0].tolist(), logits="all"))


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa-tied"])
def test_logits_are_those_of_our_decoder(saved, name):
    """With float32 inputs nothing is rounded that a difference of one bit before it could turn."""
    with cq.load(saved(name), "w8").session() as session:
        ours = session.extend(IDS[0].tolist(), logits="all")
    theirs = logits(load(saved(name), "w8"))[0]
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


def test_what_is_quantized(saved):
    model = load(saved("llama-gqa-tied"))
    names = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    assert not load(saved("llama-gqa-tied"), "int8", "int8").get_submodule("lm_head").state_dict()
    model = load(saved("llama-gqa-tied"), "int8")
    assert len(names) == 2 * 7 + 1
    assert [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)] == ["lm_head"]
    assert len([m for m in model.modules() if isinstance(m, QuantizedLinear)]) == 2 * 7
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model = load(saved("gpt2"), "int8", "int8")
    assert isinstance(model.transformer.wte, QuantizedEmbedding)
    assert model.lm_head.packed is model.transformer.wte.packed
    assert model.is_quantized and model.config.quantization_config.scheme == "int8+head:int8"


def test_modules_that_stay_float(saved, tmp_path):
    model = load(saved("llama-gqa-tied"), "int8", None, ["mlp.down_proj", "model.layers.1"])
    kept = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)} - {"lm_head"}
    assert kept == {"model.layers.0.mlp.down_proj"} | {n for n in kept if n.startswith("model.layers.1.")}
    assert len(kept) == 1 + 7
    model.save_pretrained(tmp_path / "out")
    assert same(logits(model), logits(load(tmp_path / "out")))
    with pytest.raises(AssetError, match=r"modules_to_not_convert is \['mlp.down_proj', 'model.layers.1'\]"):
        cq.load(tmp_path / "out")
    with pytest.raises(InputError, match="no Linear or Conv1D to quantize"):
        load(saved("gpt2"), "int8", None, ["transformer"])


@pytest.mark.parametrize("name", ["gpt2", "llama-odd-heads-untied"])
def test_a_model_without_its_head(saved, tmp_path, name):
    whole = load(saved(name), "int8", "int8")
    whole.save_pretrained(tmp_path / "whole")
    part = transformers.AutoModel.from_pretrained(tmp_path / "whole")
    with torch.inference_mode():
        hidden = part(IDS).last_hidden_state
        assert torch.equal(hidden, whole.base_model(IDS).last_hidden_state)
        part.save_pretrained(tmp_path / "part")
        assert torch.equal(hidden, transformers.AutoModel.from_pretrained(tmp_path / "part")(IDS).last_hidden_state)


def test_shards_and_a_second_save(saved, tmp_path):
    model = load(saved("gpt2"), "int8")
    model.save_pretrained(tmp_path / "out", max_shard_size="20KB")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    again = load(tmp_path / "out")
    assert same(logits(model), logits(again))
    cq.load(tmp_path / "out")
    again.save_pretrained(tmp_path / "more")
    assert stored(tmp_path / "more") == stored(tmp_path / "out")
    assert cq.load(tmp_path / "more").name == cq.load(tmp_path / "out").name == "gpt2"


def test_a_bfloat16_checkpoint_runs_in_float32(tmp_path):
    transformers_model("llama-gqa-tied").to(torch.bfloat16).save_pretrained(tmp_path / "half")
    expected = logits(quantize_(load(tmp_path / "half", dtype=torch.float32)))
    for dtype in ("auto", torch.bfloat16):
        found = load(tmp_path / "half", "int8", dtype=dtype)
        assert found.dtype == torch.float32 and same(expected, logits(found))


def test_copies_pickles_and_state_dicts(saved):
    model, other = load(saved("gpt2"), "int8", "int8"), load(saved("gpt2"), "int8", "int8")
    assert same(logits(model), logits(copy.deepcopy(model)))
    layer = model.transformer.h[0].mlp.c_fc
    x = torch.randn(3, layer.in_features)
    assert torch.equal(layer(x), pickle.loads(pickle.dumps(layer))(x))
    state = model.state_dict()
    state["transformer.h.0.mlp.c_fc.bias"] = torch.ones(layer.out_features)
    assert other.load_state_dict(state).missing_keys == []
    assert torch.allclose(other.transformer.h[0].mlp.c_fc(x), layer(x) - layer.bias + 1, atol=1e-5)
    bad = {"qweight": torch.zeros(3, 3, dtype=torch.int8)}
    with pytest.raises(RuntimeError, match=r"qweight is torch.int8 of shape \(3, 3\)"):
        layer.load_state_dict(bad, strict=False)
    state["transformer.h.0.mlp.c_fc.qweight"] = torch.full(state["transformer.h.0.mlp.c_fc.qweight"].shape, -128).to(
        torch.int8
    )
    with pytest.raises(AssetError, match="is -128"):
        other.load_state_dict(state)


def test_generate_in_batches_with_padding(saved):
    model = load(saved("llama-gqa-tied"), "int8")
    rows = [[5, 6, 7, 8, 9], [11, 12, 13]]
    how = dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    alone = [model.generate(torch.tensor([row]), **how)[0, len(row) :] for row in rows]
    ids = torch.tensor([rows[0], [0, 0, *rows[1]]])
    batch = model.generate(ids, attention_mask=torch.tensor([[1] * 5, [0, 0, 1, 1, 1]]), **how)[:, 5:]
    assert torch.equal(batch[0], alone[0]) and torch.equal(batch[1], alone[1])


PLAIN = """
import sys
sys.modules["cachequant"] = None  # not importable
import torch
from transformers import AutoModel, AutoModelForCausalLM
for folder in sys.argv[1:]:
    for kind in (AutoModel, AutoModelForCausalLM):
        for how in ({}, {"dtype": torch.float32}):
            try:
                kind.from_pretrained(folder, **how)
            except RuntimeError as error:
                assert "mismatched" in str(error), error
            else:
                sys.exit(f"{folder} was loaded as {kind}")
print("refused")
"""


def test_without_the_package_a_checkpoint_is_refused(saved, tmp_path):
    load(saved("gpt2"), "int8").save_pretrained(tmp_path / "theirs")
    write_checkpoint(saved("llama-gqa-tied"), tmp_path / "ours", "int8")
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, tmp_path / "theirs", tmp_path / "ours"], capture_output=True, text=True
    )
    assert done.stdout == "refused\n", done.stderr


@pytest.fixture(scope="module")
def good(saved, tmp_path_factory):
    """A checkpoint that transformers wrote."""
    folder = tmp_path_factory.mktemp("good") / "out"
    load(saved("gpt2"), "int8").save_pretrained(folder)
    return folder


def rewrite(folder, change) -> None:
    """The tensors changed, with fitting hashes in the metadata."""
    from safetensors.torch import load_file, save_file

    from cachequant.hf.files import metadata

    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path, metadata(state, CacheQuantConfig().formats, {}) | {"format": "pt"})


UP = "transformer.h.0.mlp.c_fc"


def flip(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def edit_config(**fields):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] |= fields
        (folder / "config.json").write_text(json.dumps(config))

    return change


DAMAGE = {
    "changed": (flip, "has sha256"),
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-3]),
        "trunc",
    ),
    "missing tensor": (lambda f: rewrite(f, lambda s: s.pop(UP + ".scales")), f"'{UP}.scales' is missing"),
    "unexpected tensor": (
        lambda f: rewrite(f, lambda s: s.update({"x.scales": torch.ones(1)})),
        "unexpected tensor 'x.scales'",
    ),
    "-128": (lambda f: rewrite(f, lambda s: s[UP + ".qweight"][3, 5].fill_(-128)), rf"'{UP}.qweight'\[3, 5\] is -128"),
    "nan scale": (
        lambda f: rewrite(f, lambda s: s[UP + ".scales"][3, 0].fill_(float("nan"))),
        rf"'{UP}.scales'\[3, 0\] is nan",
    ),
    "nan bias": (lambda f: rewrite(f, lambda s: s[UP + ".bias"][3].fill_(float("nan"))), rf"{UP}.bias\[3\] is nan"),
    "no note": (
        lambda f: shutil.copy(f / "float.safetensors", f / "model.safetensors"),
        "no file .*cachequant.json",
    ),
    "another scheme": (edit_config(scheme="w8"), "scheme is 'w8' in config.json, 'int8' in the note"),
    "newer format": (edit_config(format_version=2), "format version 2"),
    "unknown field": (edit_config(group=3), r"unknown arguments \['group'\]"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_checkpoints(good, saved, tmp_path, case):
    shutil.copytree(good, tmp_path / "bad")
    shutil.copy(f"{saved('gpt2')}/model.safetensors", tmp_path / "bad" / "float.safetensors")
    damage, message = DAMAGE[case]
    damage(tmp_path / "bad")
    with pytest.raises(CachequantError, match=message):
        load(tmp_path / "bad")


def test_float_checkpoints_that_cannot_be_quantized(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    for name, change, kind, message in (
        ("nan", lambda s: s[UP + ".weight"][2, 3].fill_(float("nan")), NumericsError, f"{UP}.weight: 1 of .* NaN"),
        ("gap", lambda s: s.pop(UP + ".weight"), AssetError, f"'{UP}.weight' is missing"),
        ("no bias", lambda s: s.pop(UP + ".bias"), AssetError, f"'{UP}.bias' is missing"),
        ("shape", lambda s: s.update({UP + ".weight": torch.ones(3, 3)}), InputError, r"has shape \(3, 3\)"),
    ):
        shutil.copytree(saved("gpt2"), tmp_path / name)
        state = load_file(tmp_path / name / "model.safetensors")
        change(state)
        save_file(state, tmp_path / name / "model.safetensors", {"format": "pt"})
        with pytest.raises(kind, match=message):
            load(tmp_path / name, "int8")


def test_what_is_refused(saved):
    for config, message in (
        (dict(scheme="int9"), "unknown scheme 'int9'"),
        (dict(scheme="fp32"), "leaves the layers in float32"),
        (dict(scheme="int8-smooth"), "is calibrated"),
        (dict(head="int4"), "unknown head format 'int4'"),
        (dict(group_size=32), r"unknown arguments \['group_size'\]"),
        (dict(modules_to_not_convert="lm_head"), "has to be a list"),
    ):
        with pytest.raises(InputError, match=message):
            CacheQuantConfig(**config)
    with pytest.raises(InputError, match="device_map .*cuda.* run on the CPU"):
        CacheQuantizer(CacheQuantConfig()).validate_environment(device_map={"": torch.device("cuda", 0)})
    with pytest.raises(InputError, match="got a Linear"):
        quantize_(torch.nn.Linear(3, 4))
    model = quantize_(transformers_model("gpt2"))
    with pytest.raises(InputError, match="quantized already"):
        quantize_(model)
    with pytest.raises(InputError, match="torch.bfloat16 on cpu"):
        quantize_(transformers_model("gpt2").to(torch.bfloat16))
    with pytest.raises(InputError, match="no gradients"):
        model.train()
    with pytest.raises(InputError, match=r"torch.inference_mode\(\)"):
        model(IDS)


def test_a_model_that_cannot_be_quantized_is_left_as_it_was():
    model = transformers_model("gpt2")
    before = logits(model)
    layer = model.transformer.h[1].mlp.c_proj
    kept = layer.weight[0, 0].item()
    with torch.no_grad():
        layer.weight[0, 0] = float("inf")
    with pytest.raises(NumericsError, match=r"h.1.mlp.c_proj.weight\[0, 0\] is inf"):
        quantize_(model)
    with torch.no_grad():
        layer.weight[0, 0] = kept
    assert same(before, logits(model))
