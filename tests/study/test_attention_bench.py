"""The arms of the attention benchmark at contexts that end in a page and at its edge."""

import pytest

from cachequant.errors import InputError
from cachequant.study import attention_arms
from cachequant.study.attention_arms import AttentionWork


@pytest.mark.parametrize("tokens", [1, 32, 33, 64, 288, 300])
@pytest.mark.parametrize("arm", ["kv-fp32", "kv-fp16", "kv-k4v4", "kv-k3v2"])
def test_a_step_runs_and_the_cache_has_the_size_that_it_says(arm, tokens, monkeypatch):
    monkeypatch.setattr(attention_arms, "PASSES_SECONDS", 0)
    work = AttentionWork(arm, 1, [2, 4, 2, 16], tokens, 1)
    assert work.step()["seconds"] > 0
    exact = 2 * 2 * 2 * 16 * 32 * 4
    full = tokens // 32 + (tokens % 32 > 0)
    size = work.facts()["bytes"]
    assert size == full * exact if arm == "kv-fp32" else exact <= size <= full * exact + exact


@pytest.mark.parametrize("arm", ["kv-k5v4", "k4v4", "sdpa"])
def test_unknown_arms(arm):
    with pytest.raises(InputError, match=f"unknown arm '{arm}'"):
        attention_arms.get(arm)
