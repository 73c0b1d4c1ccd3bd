"""Rows and figures of long and short prompts, from an object made by hand."""

import pytest

from cachequant.study import prompt_rows


def cell(value, spread=0.0):
    return {"median": value, "low": value - spread, "high": value + spread, "values": [value]}


def long(speed, share):
    return {"prefill_tok_s": cell(speed), "attention_share": cell(share), "attention_gops": cell(1.0)}


def short(once, steps):
    return {"seconds": cell(once), "step_seconds": cell(steps), "against_steps": cell(steps / once, 0.1)}


@pytest.fixture
def prompts():
    return {
        "long": {"100": {"int8": long(50.0, 0.5)}, "1000": {"int8": long(20.0, 0.8)}},
        "operations": {"100": {"attention": 1e9, "products": 1e9}, "1000": {"attention": 1e11, "products": 1e10}},
        "gemm_gops": cell(10.0),
        "short": {"1": {"int8": short(0.01, 0.01)}, "2": {"int8": short(0.04, 0.02)}, "4": {"int8": short(0.02, 0.04)}},
        "sweep": {"1": {"int8": cell(0.010)}, "2": {"int8": cell(0.012)}, "4": {"int8": cell(0.032)}},
        "memory": {"100": {"bytes": 3_000_000}, "200": {"bytes": 4_000_000}, "400": {"bytes": 6_000_000}},
    }


def test_rows_name_length_and_arm(prompts):
    assert [(r["tokens"], r["arm"], r["prefill_tok_s"]["median"]) for r in prompt_rows.long(prompts)] == [
        ("100", "int8", 50.0),
        ("1,000", "int8", 20.0),
    ]
    last = prompt_rows.short(prompts)[-1]
    assert (last["once"]["median"], last["steps"]["median"], last["ratio"]["median"]) == (20.0, 40.0, 2.0)


def test_memory_says_what_each_further_token_takes(prompts):
    assert [(r["mb"], r["kb"]) for r in prompt_rows.memory(prompts)] == [(3.0, None), (4.0, 10.0), (6.0, 10.0)]


def test_a_straight_line_is_not_bent(prompts):
    assert prompt_rows.line(prompts) == pytest.approx((10_000, 0), abs=1e-6)
    prompts["memory"]["400"]["bytes"] = 16_000_000
    assert prompt_rows.line(prompts)[1] > 0.05


def test_ideal_attention_leaves_the_products(prompts):
    """0.02 s a token of which 0.01 are products; attention of 1e8 operations a token at 1e10 a second: 0.01 s."""
    assert prompt_rows.ideal(prompts, "int8") == pytest.approx(0.02 / (0.01 + 0.01))


def test_only_lengths_that_lose_for_sure_are_named(prompts):
    assert prompt_rows.slower_than_steps(prompts, "int8") == ["2"]


def test_the_dearest_token_is_found(prompts):
    assert prompt_rows.dearest(prompts, "int8") == (pytest.approx(1.0), 4)
