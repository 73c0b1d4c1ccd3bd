"""The calculator against what is allocated."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.decoder.config import DecoderConfig
from cachequant.errors import InputError
from cachequant.kv.memory import memory, report
from helpers import checkpoint

SMOLLM2 = DecoderConfig(
    family="llama", layers=30, heads=9, kv_heads=3, head_dim=64, width=576, ffn=1536, vocab=49152, context=8192,
    norm_eps=1e-5, activation="silu", rope_theta=1e4, tied=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cq.load(checkpoint("llama-coded", str(tmp_path_factory.mktemp("models"))))


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 64, 95])
@pytest.mark.parametrize("kv", ["fp32", "fp16", "int8", "k4v3", "k2v2,0:k8v8", "k3v3+exact2"])
def test_a_session_takes_what_was_counted(model, kv, tokens):
    other = model.with_kv(kv, "none")
    found = memory(other.config, kv, tokens, "none")
    with other.session() as session:
        session.extend(np.arange(tokens) % 100, logits="none")
        assert session.nbytes == found.pages
    assert found.basis == other.pages.nbytes


def test_figures_of_smollm2():
    found = report("smollm2", SMOLLM2, "k4v4", 8192)
    assert found["bits_per_value_limit"] == 4.25
    assert found["bits_per_value"] == pytest.approx((32 + 255 * 4.25) / 256)
    assert found["ratio_fp32"] == pytest.approx(2 * found["ratio_fp16"])
    parts = found["bytes"]
    assert parts["codes"] + parts["scales"] + parts["exact"] + parts["slack"] == parts["pages"]
    assert parts["slack"] == 0


@pytest.mark.parametrize("tokens", [0, 8193])
def test_a_context_that_is_not_there(tokens):
    with pytest.raises(InputError, match=f"{tokens} tokens: give 1 to 8192"):
        memory(SMOLLM2, "k4v4", tokens)
