"""Q8_0 files and our blocks of 32: the same codes and steps in both directions, none of them rounded again."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
import tokenizers

import cachequant as cq
import helpers
from cachequant import schemes
from cachequant.assets import gguf_tokenizer, models
from cachequant.assets.gguf_file import GgufFile
from cachequant.assets.gguf_write import export_gguf
from cachequant.checkpoint.write import write_checkpoint
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.errors import InputError
from cachequant.quantize import quantize
from gguf_files import GPT2, LLAMA, Q8_0, QWEN2, write

IDS = list(range(3, 40))
WIDE = {
    "gpt2": helpers.GPT2 | dict(n_embd=64, n_head=4),
    "llama": helpers.LLAMA | dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16),
    "untied": helpers.LLAMA | dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16,
                                   tie_word_embeddings=False),
    "qwen2": helpers.LLAMA | dict(model_type="qwen2", hidden_size=64, intermediate_size=96, num_attention_heads=4,
                                  head_dim=16),
    "llama3": helpers.LLAMA | dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16,
                                   rope_parameters=helpers.LLAMA3 | {"rope_theta": 10000.0, "factor": 32.0,
                                                                     "original_max_position_embeddings": 8192}),
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Folder of a tiny model whose rows are whole blocks, by name."""
    root = tmp_path_factory.mktemp("wide")
    with pytest.MonkeyPatch.context() as patch:
        for name, fields in WIDE.items():
            patch.setitem(helpers.TINY, name, fields)
        yield lambda name: helpers.checkpoint(name, str(root))


def logits(model) -> np.ndarray:
    with model.session() as session:
        return session.extend(IDS, logits="all").view(np.uint32)


@pytest.mark.parametrize(
    ("config", "architecture"), [(LLAMA, "llama"), (QWEN2, "qwen2"), (GPT2, "gpt2")], ids=["llama", "qwen2", "gpt2"]
)
def test_codes_of_a_file_are_kept_as_they_are(cache, tmp_path, config, architecture):
    write(tmp_path / "m.gguf", config, Q8_0, architecture)
    asset = models.resolve(tmp_path / "m.gguf")
    for name in [f"{linear}.weight" for linear in config.linear_names()] + ["embed.weight"]:
        q = asset.weights.as_codes(name, schemes.Q8_0)
        assert (q.codes.dtype, q.scales.dtype) == (np.int8, np.float16)
        values = q.codes.astype(np.float32) * np.repeat(q.scales.astype(np.float32), 32, axis=1)
        assert np.array_equal(values, asset.weights[name])
        widened = asset.weights.as_codes(name, schemes.get("int8-block32").weight)
        assert widened.scales.dtype == np.float32
        assert np.array_equal(widened.scales, q.scales)
        assert asset.weights.as_codes(name, schemes.INT8) is None


def test_float16_and_widened_steps_give_the_same_bits(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA, Q8_0)
    narrow, wide = cq.load(tmp_path / "m.gguf", "q8_0+head"), cq.load(tmp_path / "m.gguf", "int8-block32+head")
    assert np.array_equal(logits(narrow), logits(wide))
    assert narrow.weight_bytes < wide.weight_bytes


def test_a_step_that_no_quantizer_writes_is_read_as_float32(cache, tmp_path):
    write(tmp_path / "m.gguf", LLAMA, Q8_0)
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    found = GgufFile(tmp_path / "m.gguf").tensors["blk.0.ffn_up.weight"]
    at = bytes(data).index(found.data[:64].tobytes())
    data[at + 1] |= 0x80  # the sign of the first float16
    (tmp_path / "m.gguf").write_bytes(bytes(data))
    asset = models.resolve(tmp_path / "m.gguf")
    assert asset.weights.as_codes("layers.0.mlp.up.weight", schemes.Q8_0) is None
    assert asset.weights.as_codes("layers.1.mlp.up.weight", schemes.Q8_0) is not None


@pytest.mark.parametrize("name", WIDE)
def test_an_exported_model_has_the_same_bits(cache, tmp_path, source, name):
    model = cq.load(source(name), "q8_0+head")
    export_gguf(models.resolve(source(name)), tmp_path / "m.gguf", model.scheme)
    assert np.array_equal(logits(cq.load(tmp_path / "m.gguf", "q8_0+head")), logits(model))
    found = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    kinds = {name: t.tensor_type.name for name, t in found.items()}
    assert kinds["blk.1.ffn_down.weight"] == "Q8_0"
    assert kinds["output.weight" if name == "untied" else "token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_norm.weight"] == "F32"


def test_a_checkpoint_is_exported_as_it_is(cache, tmp_path, source):
    folder = write_checkpoint(source("llama"), tmp_path / "out", "q8_0", "int8-block32")
    export_gguf(models.resolve(folder), tmp_path / "m.gguf", schemes.get("q8_0+head"))
    asset, stored = models.resolve(tmp_path / "m.gguf"), models.resolve(folder).weights
    for name in (n for n in asset.weights if hasattr(stored[n], "codes")):
        q = asset.weights.as_codes(name, schemes.Q8_0)
        assert np.array_equal(q.codes, stored[name].codes)
        assert np.array_equal(q.scales.view(np.uint16), stored[name].scales.view(np.uint16))
    again = write_checkpoint(tmp_path / "m.gguf", tmp_path / "again", "q8_0", "int8-block32")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_float32_and_partly_coded_files(cache, tmp_path, source):
    for scheme in ("fp32", "q8_0", "fp32+head"):
        path = tmp_path / f"{scheme}.gguf"
        export_gguf(models.resolve(source("llama")), path, schemes.get(scheme))
        assert np.array_equal(logits(cq.load(path, scheme)), logits(cq.load(source("llama"), scheme)))


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("scheme", ["int8+head:int8", "int8-block32+head", "bfp8", "int8-tensor-w", "block64-exact"])
def test_codes_of_other_schemes_are_kept_and_steps_rounded_to_halves(cache, tmp_path, source, name, scheme):
    chosen = schemes.get(scheme)
    source_weights = models.resolve(source(name)).weights
    export_gguf(models.resolve(source(name)), tmp_path / "m.gguf", chosen)
    asset = models.resolve(tmp_path / "m.gguf")
    for layer in {"layers.0.attn.q.weight", "layers.0.attn.qkv.weight", "layers.1.mlp.down.weight"} & set(
        asset.weights
    ):
        want = quantize(np.asarray(source_weights[layer]), chosen.weight)
        found = asset.weights.as_codes(layer, schemes.Q8_0)
        assert np.array_equal(found.codes, want.codes)
        blocks = found.codes.shape[1] // 32
        share = getattr(chosen.weight.granularity, "size", 32 * blocks) // 32
        steps = np.repeat(want.steps(), share, axis=1)[:, :blocks]
        assert np.array_equal(found.scales, steps.astype(np.float16))
    kind = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}["token_embd.weight"]
    assert kind == ("Q8_0" if chosen.head and name != "untied" else "F32")


@pytest.mark.parametrize("scale", [1e10, 1e-12])
def test_steps_that_halves_do_not_hold_are_refused(cache, tmp_path, source, scale):
    asset = models.resolve(source("llama"))
    changed = dict(asset.weights)
    changed["layers.0.mlp.down.weight"] = np.asarray(changed["layers.0.mlp.down.weight"]) * np.float32(scale)
    with pytest.raises(InputError, match="layers.0.mlp.down.weight: a step of .* is not what Q8_0 holds"):
        export_gguf(replace(asset, weights=changed), tmp_path / "m.gguf", schemes.get("int8"))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("int8-hadamard", "'int8-hadamard' is not what Q8_0 holds; allowed: fp32, q8_0"),
        ("block16-exact", "is not what Q8_0 holds"),
        ("q8_0", "rows of 48 values are not whole blocks of 32"),
    ],
)
def test_what_cannot_be_exported_is_refused(cache, tmp_path, scheme, message):
    asset = models.resolve(helpers.checkpoint("llama-gqa-tied", str(tmp_path / "saved")))
    with pytest.raises(InputError, match=message):
        export_gguf(asset, tmp_path / "m.gguf", schemes.get(scheme))
    assert not (tmp_path / "m.gguf").exists()


def test_nothing_is_overwritten_and_checkpoints_keep_their_scheme(cache, tmp_path, source):
    (tmp_path / "m.gguf").write_text("mine")
    with pytest.raises(InputError, match="exists; name a new file"):
        export_gguf(models.resolve(source("gpt2")), tmp_path / "m.gguf", schemes.get("fp32"))
    folder = write_checkpoint(source("gpt2"), tmp_path / "out", "q8_0")
    with pytest.raises(InputError, match="quantized as 'q8_0'; allowed is that"):
        export_gguf(models.resolve(folder), tmp_path / "n.gguf", schemes.get("q8_0+head"))


@pytest.mark.parametrize("rule", gguf_tokenizer._RULES)
def test_a_vocabulary_survives(cache, tmp_path, source, rule):
    fields = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": rule, "tokenizer.ggml.tokens": ["a", "b", "ab", "<end>"],
        "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.token_type": [1, 1, 1, 3],
    }  # fmt: skip
    text = gguf_tokenizer.build_tokenizer(fields)
    folder = tmp_path / "model"
    write_model_with(text, source("llama"), folder)
    assert export_gguf(models.resolve(folder), tmp_path / "m.gguf", schemes.get("fp32"))
    found = models.resolve(tmp_path / "m.gguf").tokenizer
    assert found.encode("abba<end>") == Tokenizer(text).encode("abba<end>") == [2, 1, 0, 3]
    assert GgufFile(tmp_path / "m.gguf").fields["tokenizer.ggml.pre"] == rule


def write_model_with(tokenizer: str, source: str, folder) -> None:
    import shutil

    shutil.copytree(source, folder)
    (folder / "tokenizer.json").write_text(tokenizer)


def test_a_tokenizer_without_a_name_leaves_the_vocabulary_out(cache, tmp_path, source):
    plain = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    write_model_with(plain.to_str(), source("llama"), tmp_path / "model")
    assert not export_gguf(models.resolve(tmp_path / "model"), tmp_path / "m.gguf", schemes.get("fp32"))
    assert models.resolve(tmp_path / "m.gguf").tokenizer is None


def test_gpt2s_own_tokenizer_json_is_recognized():
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = json.loads(json.dumps({"model": model, "pre_tokenizer": step, "normalizer": None}))
    assert gguf_tokenizer._rule_of(tokenizer) == "gpt-2"


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("scheme", ["fp32", "q8_0", "q8_0+head", "int8+head"])
def test_llama_cpp_reads_it_and_agrees(cache, tmp_path, source, name, scheme):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make peers)")
    export_gguf(models.resolve(source(name)), tmp_path / "m.gguf", schemes.get(scheme))
    llama = llama_cpp.Llama(str(tmp_path / "m.gguf"), n_ctx=64, verbose=False)
    llama.eval(IDS)
    theirs = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), shape=(131,))
    with cq.load(tmp_path / "m.gguf", scheme.replace("int8", "q8_0")).session() as session:
        ours = session.extend(IDS)
    # their keys and values are float16, and so are the scales of their inputs
    assert np.square(ours - theirs).mean() ** 0.5 < (0.005 if scheme == "fp32" else 0.05) * ours.std()
