"""Rows of the chapter on other engines, from a small result made by hand."""

import pytest

from cachequant.study import peer_rows
from cachequant.study.results import Result


def cell(value):
    return {"median": value, "low": value, "high": value, "values": [value]}


@pytest.fixture
def result():
    # a rest of 10 ms and 2 MB/ms: 110 ms for 200 MB, 35 ms for 50 MB
    speed = {"llamacpp-f32": 1000 / 110, "llamacpp-q8_0": 1000 / 35, "fp32": 10.0, "int8+head": 20.0}
    size = {"llamacpp-f32": 200e6, "llamacpp-q8_0": 50e6, "fp32": 200e6, "int8+head": 50e6}
    bench = {
        "arms": {a: {"prefill_tok_s": cell(9.0), "decode_tok_s": cell(s)} for a, s in speed.items()},
        "ratios": {"int8+head/llamacpp-q8_0": {m: cell(0.7) for m in ("prefill_tok_s", "decode_tok_s")}},
        "facts": {a: {"weight_bytes": b} for a, b in size.items()},
        "runs": {a: [{"ids": [1, 2, 3 + (a == "llamacpp-q8_0")]}] for a in speed},
        "provenance": {
            "workload": {"prompt": 8, "new": 4},
            "engines": {"llamacpp-q8_0": {"name": "llama.cpp", "version": "0.3", "build": "AVX2 = 1"}},
        },
    }
    bench["provenance"]["engines"]["llamacpp-f32"] = bench["provenance"]["engines"]["llamacpp-q8_0"]
    close = {"llamacpp-q8_0": {"kl": 0.1, "top1": 1.0, "error": 0.2}}
    data = {
        "models": {"tiny": {"random": True, "kv_bytes": 0, "multiplications": {"blocks": 1, "head": 1}}},
        "profiles": {"tiny": {"prompt": bench}},
        "agreement": {"tiny": close},
        "machine": {"threads": 1, "read_gb_s": {"1": cell(4.0)}, "gemm_gops": {}},
    }
    return Result("11_peers", "local", {}, {"versions": {"transformers": "5", "torch": "2"}}, data)


def test_only_engines_that_ran_are_listed(result):
    rows = peer_rows.versions(result)
    assert [r[:2] for r in rows] == [["`llamacpp-f32`", "llama.cpp 0.3"], ["`llamacpp-q8_0`", "llama.cpp 0.3"]]
    assert peer_rows.builds(result) == {"llama.cpp": "AVX2 = 1"}


def test_agreement_counts_tokens_up_to_the_first_other_one(result):
    (row,) = peer_rows.agreement(result)
    assert row["model"] == "tiny (random weights)" and (row["kl"], row["tokens"]) == (0.1, 2)
    assert peer_rows.agreeing([1, 2], [1, 2, 3]) == 2 and peer_rows.agreeing([], [1]) == 0


def test_ratios_are_against_engines_only(result):
    assert [(r["arm"], r["prefill"]["median"]) for r in peer_rows.against(result, "int8+head")] == [
        ("llamacpp-q8_0", 0.7)
    ]


def test_caches_are_compared_with_the_first_of_ours(result):
    assert peer_rows.caches(result) == []
    figures = {"kl": 0.1, "top1": 1.0, "code_bits": 4.25, "bits": 6.0, "exact": 48.5, "fill_seconds": None}
    speed = {"decode_tok_s": cell(2.0)}
    accuracy = {"ours": "b", "arms": {"a": figures, "b": figures}, "differences": {"a/b": {"value": 0.5}}}
    result.data["caches"] = {"accuracy": accuracy, "arms": {"a": speed}, "ratios": {"b/a": speed}}
    first, ours = peer_rows.caches(result)
    assert (first["more"], first["times"], first["tok_s"]) == ({"value": 0.5}, cell(2.0), cell(2.0))
    assert (ours["more"], ours["times"], ours["tok_s"], ours["bits"]) == (None, None, None, 6.0)


def test_contexts_are_times_sizes_and_ratios(result):
    arms = {"a": {"speed": cell(10.0), "bytes": cell(4e6)}, "b": {"speed": cell(20.0), "bytes": cell(1e6)}}
    result.data["contexts"] = {"64": {"arms": arms, "ratios": {"b/a": {"speed": cell(2.0)}}}}
    first, other = peer_rows.contexts(result, "b")
    assert (first["context"], first["arm"], first["ms"]["median"], first["mb"]) == (64, "a", 100, 4)
    assert first["times"]["median"] == 2 and other["times"] is None


def test_two_formats_give_rate_and_rest(result):
    theirs, ours = peer_rows.two_parts(result)
    assert theirs["engine"] == "llama.cpp"
    assert (theirs["rate"], theirs["rest"]) == (pytest.approx(2.0), pytest.approx(10.0))
    assert theirs["share"] == pytest.approx(10 / 35) and ours["rest"] == pytest.approx(100 / 3)


def test_codes_that_are_slower_than_floats_have_no_rate(result):
    result.data["profiles"]["tiny"]["prompt"]["arms"]["int8+head"]["decode_tok_s"] = cell(5.0)
    assert peer_rows.two_parts(result)[1]["rate"] is None
