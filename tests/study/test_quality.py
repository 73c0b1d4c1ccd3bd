"""Scores against plain NumPy, resumption, and figures against hand-worked sums."""

import json

import numpy as np
import pytest

import cachequant
import helpers
from cachequant import schemes
from cachequant.assets.texts import Text
from cachequant.errors import InputError, ResultError
from cachequant.study import quality, window_sums
from cachequant.study.divergence import greedy

TEXT = Text("greek", "alpha beta gamma delta epsilon zeta eta theta iota kappa", "f" * 64)
SCHEMES = ["int8", "bfp8", "int8-tensor", "int8+head"]


class Letters:
    """A tokenizer: one id a character."""

    sha256 = "letters"

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    found = cachequant.load(helpers.checkpoint("llama-gqa-tied", str(tmp_path_factory.mktemp("tiny"))))
    found.tokenizer = Letters()
    return found


@pytest.fixture(scope="module")
def evaluation(model):
    return quality.evaluate(model, SCHEMES, TEXT, tokens=50, window=20)


def _truth(model, start, end):
    """float64 log-probabilities (T, V) and raw logits of the scored tokens of one window, and their targets."""
    ids = Letters().encode(TEXT.text)[start:end]
    with model.session() as session:
        logits = session.extend(ids, logits="all")[:-1].astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), logits, np.array(ids[1:])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sums_equal_plain_numpy(model, evaluation, scheme):
    other = model.with_scheme(scheme)
    sums = evaluation["schemes"][scheme]
    for w, (start, end) in enumerate([(0, 20), (20, 40), (40, 50)]):
        log_p, raw_p, targets = _truth(model, start, end)
        log_q, raw_q, _ = _truth(other, start, end)
        rows = np.arange(len(targets))
        assert sums["scored"][w] == len(targets) == end - start - 1
        assert evaluation["schemes"]["fp32"]["nll"][w] == pytest.approx(-log_p[rows, targets].sum(), rel=1e-5)
        assert sums["nll"][w] == pytest.approx(-log_q[rows, targets].sum(), rel=1e-5)
        assert sums["kl"][w] == pytest.approx((np.exp(log_p) * (log_p - log_q)).sum(), rel=1e-3, abs=1e-5)
        best = raw_p.argmax(1)
        assert sums["top1"][w] == (raw_q.argmax(1) == best).sum()
        five = np.argsort(-raw_q, axis=1, kind="stable")[:, :5]
        assert sums["top5"][w] == (five == best[:, None]).any(1).sum()
        error = raw_q - raw_p
        centred = np.abs(error - error.mean(1, keepdims=True)).mean(1)
        assert sums["centred_error"][w] == pytest.approx(centred.sum(), rel=1e-3)
        assert sums["mean_error"][w] == pytest.approx(np.abs(error).mean(1).sum(), rel=1e-3)
        assert sums["max_error"][w] == pytest.approx(np.abs(error).max(), rel=1e-3)


def test_figures_follow_from_the_sums(evaluation):
    json.dumps(evaluation, allow_nan=False)
    figures = quality.summarize(evaluation)
    base, other = evaluation["schemes"]["fp32"], evaluation["schemes"]["int8-tensor"]
    scored = sum(base["scored"])
    assert figures["fp32"] == {
        "perplexity": pytest.approx(np.exp(sum(base["nll"]) / scored)),
        "scored": 47,
        "windows": 3,
    }
    found = figures["int8-tensor"]
    change = found["perplexity"] / figures["fp32"]["perplexity"] - 1
    assert found["delta_percent"]["value"] == pytest.approx(100 * change)
    assert found["delta_percent"]["low"] <= found["delta_percent"]["value"] <= found["delta_percent"]["high"]
    assert found["top1"] == sum(other["top1"]) / scored
    assert found["kl"] == pytest.approx(sum(other["kl"]) / scored)
    assert found["intervals"]["kl"]["low"] <= found["kl"] <= found["intervals"]["kl"]["high"]
    assert found["kl"] > figures["int8"]["kl"] > 0


def test_change_is_paired_within_windows():
    """Windows differ a lot, the change does not: the interval has to be narrow."""
    nll = np.linspace(100.0, 400.0, 12)
    sums = dict.fromkeys(window_sums.COMPARED, [0.0] * 12)
    found = quality.summarize(
        {
            "schemes": {
                "fp32": {"scored": [99] * 12, "nll": nll.tolist()},
                "other": {"scored": [99] * 12, **sums, "nll": (nll + 0.99).tolist()},
            }
        }
    )["other"]["delta_percent"]
    assert found["value"] == pytest.approx(100 * np.expm1(0.01))
    assert found["high"] - found["low"] < 1e-9


def test_killed_evaluation_goes_on_where_it_was(model, evaluation, tmp_path, monkeypatch):
    def stop(done, total, what):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quality.evaluate(model, SCHEMES, TEXT, 50, 20, checkpoint=tmp_path, progress=stop)
    assert len(json.loads((tmp_path / window_sums.FILE).read_text())["sums"]["fp32"]) == 2
    seen = []
    monkeypatch.setattr(quality, "hidden", lambda m, ids, run=quality.hidden: seen.append(len(ids)) or run(m, ids))
    assert quality.evaluate(model, SCHEMES, TEXT, 50, 20, checkpoint=tmp_path) == evaluation
    assert seen == [10] * (len(SCHEMES) + 1)
    longer = quality.evaluate(model, SCHEMES, TEXT, 52, 20, checkpoint=tmp_path)
    assert seen[5:] == [12] * (len(SCHEMES) + 1) and longer["schemes"]["int8"]["scored"] == [19, 19, 11]


def test_few_schemes_at_once_give_the_same(model, evaluation, monkeypatch):
    monkeypatch.setattr(quality, "AT_ONCE", 1)
    steps = []
    found = quality.evaluate(model, SCHEMES, TEXT, 50, 20, progress=lambda *a: steps.append(a[:2]))
    assert found == evaluation
    assert steps[-1] == (15, 15)


def test_another_format_of_the_same_name_is_scored_again(model, tmp_path):
    first = quality.evaluate(model, [schemes.Scheme("mine", schemes.INT8)], TEXT, 20, 20, checkpoint=tmp_path)
    other = schemes.Scheme("mine", schemes.INT8, schemes.INT8)
    second = quality.evaluate(model, [other], TEXT, 20, 20, checkpoint=tmp_path)
    assert first["schemes"]["fp32"] == second["schemes"]["fp32"]
    assert first["schemes"]["mine"]["kl"] != second["schemes"]["mine"]["kl"]


@pytest.mark.parametrize("content", ["{", "[]", '{"identity": {"model": "other"}, "formats": {}, "sums": {}}'])
def test_foreign_checkpoints_are_refused(model, tmp_path, content):
    (tmp_path / window_sums.FILE).write_text(content)
    with pytest.raises(ResultError):
        quality.evaluate(model, ["int8"], TEXT, 20, 20, checkpoint=tmp_path)


@pytest.mark.parametrize(
    "how,message",
    [
        ({"window": 1}, "window 1"),
        ({"window": 97}, "context of 96"),
        ({"tokens": 1}, "tokens 1"),
        ({"tokens": 500}, "56 tokens, fewer than the 500"),
        ({"compared": ["int8", "int8"]}, "twice"),
        ({"compared": ["int9"]}, "unknown scheme 'int9'"),
    ],
    ids=["one-token-window", "context", "one-token", "text", "twice", "unknown"],
)
def test_bad_requests_are_refused(model, how, message):
    with pytest.raises(InputError, match=message):
        quality.evaluate(model, **{"compared": ["int8"], "text": TEXT, "tokens": 40, "window": 20, **how})


def test_random_weights_have_no_quality(model, monkeypatch):
    monkeypatch.setattr(model, "random", True)
    with pytest.raises(InputError, match="random weights"):
        quality.evaluate(model, ["int8"], TEXT, 40, 20)


def test_perplexity_of_one_scheme(model, evaluation, monkeypatch, tmp_path):
    path = tmp_path / "greek.txt"
    path.write_text(TEXT.text)
    monkeypatch.setattr(quality, "_loaded", lambda m, scheme="fp32", threads=None: _with_letters(model, scheme))
    monkeypatch.setattr(quality, "_stored", lambda m: None)
    figures = quality.summarize(evaluation)
    alone = quality.perplexity("tiny", "int8", text=str(path), window=20, tokens=50)
    assert alone["perplexity"] == pytest.approx(figures["int8"]["perplexity"], rel=1e-6)
    assert (alone["scored"], alone["tokens"], alone["window"], alone["kv"]) == (47, 50, 20, "fp32")
    against = quality.perplexity("tiny", "int8", text=str(path), window=20, tokens=50, against="fp32")
    assert against["delta_percent"] == figures["int8"]["delta_percent"]
    assert {"kl", "top1", "top5"} <= set(against)
    with pytest.raises(InputError, match="kv-none"):
        quality.perplexity("tiny", kv="kv-none")


def _with_letters(model, scheme):
    found = model.with_scheme(scheme)
    found.tokenizer = Letters()
    return found


class Scripted:
    """A model whose greedy text is given."""

    def __init__(self, tokens):
        self._tokens = tokens

    def session(self):
        return self

    def __enter__(self):
        self._at = 0
        return self

    def __exit__(self, *exception):
        pass

    def extend(self, ids):
        self._at += 1
        return np.eye(10)[self._tokens[self._at - 1]]


def test_divergence_is_the_first_difference():
    a, b = Scripted([1, 2, 3, 4]), Scripted([1, 2, 9, 4])
    assert quality.greedy_divergence(a, b, [[5], [6]], new=4) == [2, 2]
    assert quality.greedy_divergence(a, b, [[5]], new=2) == [2]
    assert quality.greedy_divergence(a, a, [[5]], new=4) == [4]


def test_greedy_text_is_that_of_the_model(model):
    prompt = Letters().encode("alpha")
    assert greedy(model, prompt, 6) == model.generate(prompt, max_new_tokens=6).ids
