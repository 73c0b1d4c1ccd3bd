"""Tiny models that can be coded, in transformers and as our decoder."""

import pytest

import cachequant as cq
from cachequant import kernels
from helpers import transformers_model

MODELS = {
    "gpt2": ("gpt2", dict(n_embd=64, n_head=4, n_positions=400, eos_token_id=None)),
    "llama": ("llama-coded", dict(max_position_embeddings=400, eos_token_id=None)),
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """{name: (transformers model, function of a page format to our model of the same weights)}."""
    out = {}
    for name, (base, changes) in MODELS.items():
        model, folder = transformers_model(base, **changes), tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        out[name] = model, cq.load(str(folder), calibration="none").with_kv
    return out


@pytest.fixture(autouse=True)
def quiet():
    """No gradients, and one thread: tiny models gain nothing from more."""
    torch = pytest.importorskip("torch")
    before, ours = torch.get_num_threads(), kernels.get_threads()
    torch.set_num_threads(1)
    kernels.set_threads(1)
    with torch.no_grad():
        yield
    kernels.set_threads(ours)
    torch.set_num_threads(before)


@pytest.fixture
def cache():
    """Nothing: converted models stay in the cache folder that other tests use."""
