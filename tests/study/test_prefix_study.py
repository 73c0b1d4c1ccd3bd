"""Storage, eviction, snapshots and stress: what the functions of the study count is what the pages are."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError
from cachequant.kv.prefix import PrefixCache
from cachequant.study import eviction, mixed, snapshot_bench, storage, stress
from cachequant.study.idle import idle
from helpers import random_model

SHAPE = dict(context=2048, width=32, heads=2, kv_heads=2, head_dim=16)
ASSET = random_model(**SHAPE)._asset


def test_an_idle_model_holds_the_pages_of_a_real_one():
    ids = list(range(61)) * 4
    for kv in ("fp32", "k4v4"):
        real, still = random_model(**SHAPE).with_kv(kv, "none"), idle(ASSET, kv)
        with real.session() as a, still.session() as b:
            a.extend(ids, "none"), b.extend(ids, "none")
            assert (a.nbytes, len(a.pages), a.stored) == (b.nbytes, len(b.pages), b.stored)


def test_storage_by_length():
    raw = 2 * 2 * 2 * 16 * 4
    assert storage.token_bytes(ASSET) == raw
    found = {(r["kv"], r["tokens"]): r for r in storage.by_length(ASSET, ["fp32", "k4v4"], [32, 40, 256, 9999])}
    assert len(found) == 6
    assert found["fp32", 256]["bytes"] == 256 * raw
    assert found["fp32", 40]["bytes_per_token"] == 64 * raw / 40
    assert found["k4v4", 32]["ratio"] == 1  # page 0 is exact
    coded = found["k4v4", 256]["full_page_ratio"]
    assert found["k4v4", 256]["ratio"] == pytest.approx(8 / (1 + 7 / coded))


def test_the_tree_needs_little_beside_the_pages():
    gpt2_page = 32 * 2 * 12 * 768 * 4
    assert 0 < storage.tree_bytes(400) < 0.03 * gpt2_page


@pytest.mark.parametrize("shared", [0, 32])
def test_a_budget_holds_more_tokens_of_codes(shared):
    budget = 40 * 32 * storage.token_bytes(ASSET)
    exact, coded = (storage.capacity(ASSET, kv, budget, 256, shared) for kv in ("fp32", "k4v4"))
    assert exact == 40 * 32
    assert coded > 3 * exact
    with pytest.raises(InputError, match="whole pages"):
        storage.capacity(ASSET, "fp32", budget, 100)


def test_a_mixed_stream_finds_more_in_a_larger_budget():
    found = mixed.measure(ASSET, ["fp32", "k4v4"], [1, 2, 50], 60)
    rates = {(r["kv"], r["budget_mb"]): r["hit_rate"] for r in found["rows"]}
    assert rates["fp32", 1] <= rates["fp32", 2] <= rates["fp32", 50] == found["unlimited"]
    assert rates["k4v4", 1] > rates["fp32", 1]
    assert found["requests"] == 60
    with pytest.raises(InputError, match="context of 1700"):
        mixed.measure(random_model()._asset, ["fp32"], [1])


def test_nodes_touched_by_an_eviction_are_the_same_at_every_size():
    small, large = eviction.measure([40, 4_000], inserts=200)
    assert small["touched"] == large["touched"]
    assert small["evicted"] == large["evicted"] == 4
    assert small["in_use_kept"] and large["in_use_kept"]
    assert small["microseconds"]["median"] > 0
    for given, match in ((dict(inserts=150), "inserts 150"), (dict(sizes=[4]), "sizes")):
        with pytest.raises(InputError, match=match):
            eviction.measure(**given)


@pytest.mark.parametrize("kv", ["fp32", "k4v4"])
def test_snapshots_and_branches(kv, tmp_path):
    model = random_model(**SHAPE).with_kv(kv, "none")
    found = snapshot_bench.measure(model, 150, 2, tmp_path)
    assert found["identical"]
    assert found["kv"] == kv
    assert 1 < found["size_ratio"] < 1.5
    forks = {fork["at"]: fork for fork in found["forks"]}
    assert set(forks) == {150, 149, 64, 75, 16}
    assert (forks[150]["copied"], forks[150]["deferred"]) == (1, 0)
    assert (forks[64]["copied"], forks[64]["deferred"]) == (1, 0)  # a page for the new token
    assert forks[75]["deferred"] == (11 if kv == "k4v4" else 0)
    assert len(found["save_seconds"]["values"]) == 2
    assert model.pool.in_use == 0
    with pytest.raises(InputError, match="tokens 2048"):
        snapshot_bench.measure(model, 2048)


def test_snapshots_of_other_bits_are_told(tmp_path, monkeypatch):
    model = random_model(**SHAPE)
    load = type(model).load_session

    def other(self, path, key=None):
        session = load(self, path, key)
        model.pool.write(session.pages[0], np.zeros(model.pool.page_bytes, np.uint8))
        return session

    monkeypatch.setattr(type(model), "load_session", other)
    assert not snapshot_bench.measure(model, 50, 1, tmp_path)["identical"]


def test_stress_has_39_rows_and_all_are_right():
    model = random_model(context=260)
    rows = stress.measure(model, many=30)
    assert len(rows) == 39
    assert all(row["right"] for row in rows)
    assert {row["scheme"] for row in rows} == set(stress.SCHEMES)
    refused = [row for row in rows if row["outcome"] == "refused"]
    assert len(refused) == 24
    assert all(any(word in row["detail"] for word in ("empty", "context", "max_new_tokens 0")) for row in refused)
    assert model.pool.in_use == 0


def test_a_cache_that_changes_the_text_or_breaks_its_budget_is_not_right(monkeypatch):
    model = random_model(context=260)
    generate = type(model).generate

    def wrong(self, prompt, new, cache=None):
        made = generate(self, prompt, new, cache)
        if cache is not None:
            made.ids[-1:] = [(made.ids[-1] + 1) % 61]
        return made

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "generate", wrong)
        rows = stress.measure(model, ["fp32"], many=5)
    assert [row["right"] for row in rows if row["cache"] and row["outcome"] == "generated"] == [False] * 3
    monkeypatch.setattr(PrefixCache, "statistics", property(lambda self: type("S", (), dict(nbytes=1e9, evicted=1))()))
    assert not stress.measure(model, ["fp32"], many=5)[-1]["right"]


def test_refusals_come_before_any_compute(monkeypatch):
    model = random_model(context=260)
    monkeypatch.setattr(cq.Session, "extend", lambda *given: pytest.fail("ran"))
    for case in stress.cases(model):
        if case.expected == stress.REFUSED:
            for cache in (None, PrefixCache(model)):
                with pytest.raises(InputError):
                    model.generate(case.prompt, case.new, cache=cache)
