"""Profiles have exactly the token counts that they promise."""

import pytest

from cachequant.errors import InputError
from cachequant.study import workloads


class Words:
    """A tokenizer: one id a word."""

    def encode(self, text):
        return list(range(len(text.split())))


def test_counts_with_smollm2():
    models = pytest.importorskip("cachequant.assets.models")
    tokenizer = models.resolve("smollm2-135m").tokenizer
    for workload, prompt, new in ((workloads.SHORT, 8, 50), (workloads.LONG, 270, 10)):
        ids = tokenizer.encode(workload.text)
        assert len(ids) == workload.prompt_tokens == prompt
        assert workload.new_tokens == new
        assert workload.ids(49152, tokenizer) == list(ids)


def test_other_tokenizers_get_the_same_counts():
    for workload in workloads.PROFILES.values():
        assert len(workload.ids(1000, Words())) == workload.prompt_tokens
    words = len(workloads.LONG.text.split())
    assert workloads.prompt_ids(words + 2, 1000, Words())[-2:] == [0, 1]


def test_random_ids_are_seeded_and_inside_the_vocabulary():
    ids = workloads.prompt_ids(500, 70)
    assert ids == workloads.prompt_ids(500, 70) != workloads.prompt_ids(500, 70, seed=1)
    assert min(ids) >= 0 and max(ids) < 70 and len(set(ids)) > 60


def test_divergence_prompts_are_at_fixed_places():
    ids = list(range(12_000))
    prompts = workloads.divergence_prompts(ids)
    assert len(prompts) == 20 and {len(p) for p in prompts} == {32}
    assert [p[0] for p in prompts] == [509 * i for i in range(20)]
    assert prompts == workloads.divergence_prompts(ids[:11_000])


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="at least 1"):
        workloads.prompt_ids(0, 10)
    with pytest.raises(InputError, match="9703 tokens, this one has 100"):
        workloads.divergence_prompts(range(100))
