"""What checkpoints take, on a tiny model: smaller codes make a smaller file; base and peak are told apart."""

import sys

import numpy as np
import pytest

import helpers
from cachequant.errors import InputError
from cachequant.study import footprint, rss

SCHEMES = ("fp32", "int8+head")
WIDE = helpers.GPT2 | dict(vocab_size=40_000, n_embd=150)  # 24 MB: more than what else a process takes
SLACK = 10 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(helpers.TINY, "gpt2-wide", WIDE)
        return helpers.checkpoint("gpt2-wide", str(tmp_path_factory.mktemp("saved")))


@pytest.fixture(scope="module")
def found(model, tmp_path_factory):
    return footprint.measure(model, SCHEMES, tmp_path_factory.mktemp("checkpoints"), prompt=4, new=3, repeats=2)


def test_every_scheme_has_facts_and_speeds(found):
    assert found["missing"] == []
    for name in SCHEMES:
        facts = found["facts"][name]
        assert facts["above_bytes"] == facts["peak_rss_bytes"] - facts["base_bytes"]
        assert 0 < facts["base_bytes"] < facts["peak_rss_bytes"]
        for metric in footprint.METRICS:
            assert len(found["arms"][name][metric]["values"]) == 2
    sizes = [found["facts"][name]["file_bytes"] for name in SCHEMES]
    assert 0 < sizes[1] < sizes[0]
    assert "int8+head/fp32" in found["ratios"]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak cannot be started again")
def test_no_weights_are_in_memory_twice(found):
    plain, coded = (found["facts"][name] for name in SCHEMES)
    assert plain["above_bytes"] <= 1.1 * plain["file_bytes"] + SLACK
    assert coded["above_bytes"] <= 1.1 * coded["file_bytes"] + SLACK


def test_conversion_is_measured_against_the_source_and_a_layer(model, tmp_path):
    found = footprint.conversion(model, "int8", tmp_path)
    assert found["layer_bytes"] == 4 * 12 * 150 * 150
    assert found["source_bytes"] > 2 * found["layer_bytes"]
    assert found["above_bytes"] <= found["source_bytes"] + found["layer_bytes"] + SLACK
    assert (tmp_path / "converted" / "model.safetensors").exists()


def test_without_cache_every_token_is_a_prefill_of_all():
    class Engine:
        seen = []

        def start(self, ids):
            self.seen.append(list(ids))

        def choose(self, logits):
            return 0

    engine = footprint.Uncached(Engine())
    engine.start([1, 2])
    engine.step(3)
    engine.step(4)
    assert Engine.seen == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]


@pytest.mark.parametrize(("lengths", "message"), [((4, 1, 1), "at least 2 new"), ((90, 20, 1), "the context of 96")])
def test_lengths_that_do_not_fit_are_refused(model, tmp_path, lengths, message):
    with pytest.raises(InputError, match=message):
        footprint.measure(model, ["fp32"], tmp_path, *lengths)


def test_the_peak_starts_again():
    array = np.ones(64 << 20, np.uint8)
    del array
    if not rss.reset_peak():
        pytest.skip("only Linux can start the peak again, and not in every container")
    now = rss.memory()
    assert now["peak_rss_bytes"] < now["rss_bytes"] + (32 << 20)
