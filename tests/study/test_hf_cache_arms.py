"""Arms that differ in transformers' cache alone, on a tiny model."""

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from cachequant import kernels  # noqa: E402
from cachequant.errors import AssetError, InputError  # noqa: E402
from cachequant.study import arms, hf_cache_arms  # noqa: E402
from helpers import transformers_model  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    changes = dict(max_position_embeddings=200, hidden_size=128, head_dim=64, num_attention_heads=2)
    transformers_model("llama-coded", **changes).save_pretrained(tmp_path)
    before, ours = torch.get_num_threads(), kernels.get_threads()
    yield str(tmp_path)
    torch.set_num_threads(before)
    kernels.set_threads(ours)


def test_arms_of_the_same_model_generate_and_count_their_bytes(folder):
    ids, found = list(range(100, 130)) * 5, {}
    for name in ("hf-kv-dynamic/fp32", "hf-kv-k16v16/fp32", "hf-kv-k4v4/fp32"):
        engine = arms.get(name).build(folder, 1)
        run = arms.generate(engine, ids, 20)
        assert run.complete
        found[name] = run.ids, engine.cache_bytes()
    dense = 2 * 2 * 2 * 169 * 64 * 4
    assert found["hf-kv-dynamic/fp32"][1] == dense
    assert found["hf-kv-k16v16/fp32"][0] == found["hf-kv-dynamic/fp32"][0]
    assert found["hf-kv-k4v4/fp32"][1] != dense


@pytest.mark.parametrize("name", hf_cache_arms.BACKENDS)
def test_other_quantized_caches_run_or_say_what_is_missing(folder, name):
    _, module, package, _ = hf_cache_arms.BACKENDS[name]
    if find_spec(module) is None:
        with pytest.raises(AssetError, match=f"{package} is not installed"):
            arms.get(f"{name}/fp32").build(folder, 1)
        return
    engine = arms.get(f"{name}/fp32").build(folder, 1)
    assert arms.generate(engine, list(range(130)), 5).complete
    assert 0 < engine.cache_bytes() < 2 * 2 * 2 * 134 * 64 * 4


def test_names():
    assert hf_cache_arms.kind("hf-kv-dynamic") == hf_cache_arms.Kind()
    assert hf_cache_arms.kind("hf-kv-k4v4/int8").calibration == "auto"
    assert hf_cache_arms.kind("hf-kv-k4v4,0-1:k8v8/fp32/none").calibration == "none"
    for name, message in (
        ("hf-kv-k5v5", "unknown arm 'hf-kv-k5v5': not hf-kv-dynamic, hf-quanto, hf-hqq, nor hf-kv- and"),
        ("hf-hqq-2", "unknown arm 'hf-hqq-2'"),
        ("hf-hqq/fp32/none", "only pages of this library"),
        ("hf-kv-dynamic/int7", "int7"),
    ):
        with pytest.raises(InputError, match=message):
            arms.get(name)


def test_each_memory_counts_once():
    x = torch.zeros(3, 4)
    assert hf_cache_arms.tensor_bytes([x, {"view": x[1:], "other": (torch.zeros(2), None)}], 5) == 48 + 8
