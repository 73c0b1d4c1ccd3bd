"""Generation: limits, stop reasons, streaming, refusals before any compute."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError, NumericsError
from helpers import checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cq.load(checkpoint("llama-gqa-tied", str(tmp_path_factory.mktemp("models"))))


def test_token_limit_and_timings(model):
    out = model.generate([5, 6, 7], max_new_tokens=9)
    assert (len(out.ids), out.stop_reason, out.prompt_tokens) == (9, "token_limit", 3)
    assert len(out.token_seconds) == 8
    assert out.prefill_seconds > 0


def test_context_limit(model):
    out = model.generate([5] * 90)
    assert (len(out.ids), out.stop_reason) == (6, "context_limit")


def test_a_full_context_generates_nothing(model):
    out = model.generate([5] * 96)
    assert (out.ids, out.stop_reason) == ([], "context_limit")


def test_end_of_text(model, monkeypatch):
    first = model.generate([5, 6, 7], max_new_tokens=3).ids
    object.__setattr__(model.config, "eos_ids", (first[1],))
    try:
        out = model.generate([5, 6, 7], max_new_tokens=9)
    finally:
        object.__setattr__(model.config, "eos_ids", ())
    assert (out.ids, out.stop_reason) == (first[:1], "end_of_text")


def test_generation_equals_full_recompute(model):
    prompt, ids = [9, 8, 7, 1], []
    for _ in range(12):
        with model.session() as session:
            ids.append(int(np.argmax(session.extend(prompt + ids))))
    assert model.generate(prompt, max_new_tokens=12).ids == ids


def test_sampling_repeats_with_its_seed(model):
    draw = lambda seed: model.generate([1, 2], max_new_tokens=20, temperature=1.5, top_k=50, top_p=0.9, seed=seed).ids  # noqa: E731
    assert draw(1) == draw(1) != draw(2)


@pytest.mark.parametrize(
    ("prompt", "options", "match"),
    [
        ([], {}, "at least one token"),
        ([5] * 97, {}, "97 tokens"),
        ([5] * 90, {"max_new_tokens": 7}, "at most 6"),
        ([5], {"max_new_tokens": 0}, ">= 1"),
        ([5], {"max_new_tokens": 2.0}, ">= 1"),
        ([5], {"max_new_tokens": True}, ">= 1"),
        ([131], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([1.5], {}, "integers"),
        ("text", {}, "no tokenizer"),
        ([5], {"top_q": 1}, "top_q"),
        ([5], {"temperature": -1.0}, "temperature"),
    ],
)
def test_bad_input_is_refused_before_any_compute(model, prompt, options, match, monkeypatch):
    monkeypatch.setattr(model._decoder, "forward", lambda *a: pytest.fail("computed"))
    for call in (model.generate, model.stream):
        with pytest.raises(InputError, match=match):
            call(prompt, **options)


def test_unknown_scheme_is_refused_before_loading():
    with pytest.raises(InputError, match="int9"):
        cq.load("no such model", scheme="int9")


def test_non_finite_logits_stop_generation(model, monkeypatch):
    monkeypatch.setattr(model._decoder, "logits", lambda h: np.full((len(h), 131), np.nan, np.float32))
    with pytest.raises(NumericsError):
        model.generate([5], max_new_tokens=2)
    assert model.pool.in_use == 0


def test_fingerprint_binds_weights_and_scheme(model):
    assert model.fingerprint != model.with_scheme("int8").fingerprint
    assert model.fingerprint == model.with_scheme("fp32").fingerprint
