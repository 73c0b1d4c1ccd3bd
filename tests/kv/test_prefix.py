"""The prefix cache: any sequence of requests gives the bits of a run without it, and every page is accounted for."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import cachequant as cq
from cachequant.errors import InputError, NumericsError
from cachequant.kv.pages import BudgetError
from helpers import random_model
from naive import NaivePrefixCache

MODEL = random_model()
PAGES = 6


def alone(ids, model=MODEL):
    with model.session() as session:
        return session.extend(list(ids))


@pytest.fixture(autouse=True)
def no_page_leaks():
    yield
    assert MODEL.pool.in_use == 0


@pytest.fixture
def cache():
    with cq.PrefixCache(MODEL) as cache:
        yield cache


def ask(cache, ids, new=1):
    """One request; gives what was found after checking its tokens."""
    made = MODEL.generate(ids, new, cache=cache)
    assert made.ids == MODEL.generate(ids, new).ids
    return made.cache


class Requests(RuleBasedStateMachine):
    """Requests, branches, pins, evictions, saving and loading in any order, under a budget."""

    model = MODEL

    @initialize(pages=st.sampled_from([1, 2, PAGES, 40]))
    def begin(self, pages):
        self.budget = pages
        self.cache = cq.PrefixCache(self.model, pages * self.model.pool.page_bytes + 1)
        self.naive, self.known, self.sessions, self.pins = NaivePrefixCache(), [[]], [], set()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "session"

    def prompt(self, data):
        base = data.draw(st.sampled_from(self.known))
        base = base[: data.draw(st.sampled_from([len(base), len(base) // 2, max(len(base) - 1, 0)]))]
        more = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=45))
        return (base + more)[:150]

    def check_match(self, matched, ids):
        assert matched == self.naive.match(ids)

    def check_pins(self):
        for pinned in self.pins:
            assert self.naive.match(pinned) == len(pinned)

    def learn(self, ids):
        self.known = [*self.known[-7:], ids]

    def insert(self, session):
        ids = session.ids[: session.stored]
        self.cache.insert(session)
        if ids:
            self.naive.insert(ids)
        self.forget()

    def forget(self):
        self.naive.keep([ids for ids, _ in self.cache.walk()])

    @rule(data=st.data(), keep=st.booleans(), store=st.booleans())
    def request(self, data, keep, store):
        ids = self.prompt(data)
        session, found = self.cache.session(ids)
        assert found.matched == session.position
        self.check_match(found.matched, ids[:-1])
        assert (found.recomputed, session.ids) == (len(ids) - found.matched, ids[: found.matched])
        assert np.array_equal(session.extend(ids[session.position :]), alone(ids, self.model))
        if store:
            self.insert(session)
        self.learn(ids)
        if keep and len(self.sessions) < 5:
            self.sessions.append(session)
        else:
            session.close()

    @rule(data=st.data(), new=st.integers(1, 40))
    def generate(self, data, new):
        ids = self.prompt(data)
        made = self.model.generate(ids, new, cache=self.cache)
        assert made.ids == self.model.generate(ids, new).ids
        self.check_match(made.cache.matched, ids[:-1])
        self.naive.insert((ids + made.ids)[:-1])
        self.forget()
        self.learn(ids + made.ids)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), step=st.sampled_from(["fork", "rewind", "extend", "insert", "reload", "close"]))
    def use(self, data, step):
        i = data.draw(st.integers(0, len(self.sessions) - 1))
        session = self.sessions[i]
        if step in ("fork", "rewind"):
            at = data.draw(st.integers(0, session.position))
            result = getattr(session, step)(at)
            if step == "fork":
                self.sessions.append(result)
        elif step == "extend" and session.position < 200:
            more = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=40))
            want = alone(session.ids + more, self.model)
            assert np.array_equal(session.extend(more), want)
        elif step == "insert":
            self.insert(session)
        elif step == "reload":
            ids, stored = session.ids, session.stored
            session.save(self.path)
            session.close()
            self.sessions[i] = session = self.model.load_session(self.path)
            assert (session.ids, session.stored) == (ids, stored)
        elif step == "close":
            self.sessions.pop(i).close()

    @rule(data=st.data())
    def pin(self, data):
        ids = self.prompt(data)
        try:
            self.cache.pin(ids)
            self.pins.add(tuple(ids))
        except BudgetError:
            assert len(ids) > 32 * self.cache.statistics.evictable
        self.naive.insert(ids)
        self.forget()
        self.check_pins()

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        pinned = data.draw(st.sampled_from(sorted(self.pins)))
        self.cache.unpin(list(pinned))
        self.pins.remove(pinned)

    @rule(pages=st.integers(0, 3))
    def evict(self, pages):
        before = self.cache.statistics.evictable
        assert self.cache.evict(pages) == min(pages, before)
        self.forget()

    @invariant()
    def every_page_is_accounted_for(self):
        if not hasattr(self, "cache"):
            return
        found, stored = self.cache.statistics, [page for _, page in self.cache.walk()]
        held = {page for session in self.sessions for page in session.pages}
        held |= {page for session in self.cache._pins.values() for page in session.pages}
        self.check_budget(found)
        assert found.in_use == len(held & set(stored))
        assert found.pages == len(stored) == len(set(stored))
        assert self.model.pool.in_use == len(held | set(stored))
        assert found.nbytes == sum(self.model.pool.size(page) for page in stored)

    def check_budget(self, found):
        assert found.free + found.evictable + found.in_use == self.budget

    def teardown(self):
        if hasattr(self, "cache"):
            for session in self.sessions:
                session.close()
            self.cache.close()
            self.folder.cleanup()
            assert (self.cache.statistics.pages, self.model.pool.in_use) == (0, 0)


class RoundedRequests(Requests):
    """The same over pages of an uncompressed format, which are of two sizes."""

    def check_budget(self, found):
        assert found.nbytes <= self.budget * self.model.pool.page_bytes + 1


class CodedRequests(RoundedRequests):
    """The same over pages of codes: a hit inside one is cut back to its beginning."""

    def check_match(self, matched, ids):
        whole = self.naive.match(ids)
        assert whole // 32 * 32 <= matched <= whole


CODABLE = dict(width=32, heads=2, kv_heads=2, head_dim=16)


class Int8OverFp16(RoundedRequests):
    model = random_model("int8", **CODABLE).with_kv("fp16")


class Fp32OverHalfAndWhole(RoundedRequests):
    model = random_model(**CODABLE).with_kv("k16v32,1:k32v16")


class Int8OverK4V4(CodedRequests):
    model = random_model("int8", **CODABLE).with_kv("k4v4", "none")


class Bfp8OverMixedPages(CodedRequests):
    model = random_model("bfp8", **CODABLE).with_kv("k3v2,1:k16v8+exact2", "none")


FEW = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestRequests = Requests.TestCase
TestInt8OverFp16 = Int8OverFp16.TestCase
TestFp32OverHalfAndWhole = Fp32OverHalfAndWhole.TestCase
TestInt8OverK4V4 = Int8OverK4V4.TestCase
TestBfp8OverMixedPages = Bfp8OverMixedPages.TestCase
TestRequests.settings = FEW
TestInt8OverFp16.settings = TestFp32OverHalfAndWhole.settings = settings(FEW, max_examples=10)
TestInt8OverK4V4.settings = TestBfp8OverMixedPages.settings = settings(FEW, max_examples=10)


@pytest.mark.parametrize("scheme", ["fp32", "int8", "bfp8", "w8a12", "int8-hadamard", "int8+head"])
def test_hits_have_the_bits_of_misses(scheme, rng):
    model = random_model(scheme)
    ids = rng.integers(0, 61, 120).tolist()
    with cq.PrefixCache(model) as cache:
        for length in (120, 50, 64, 65, 100):
            session, _ = cache.session(ids[:length])
            with session:
                got = session.extend(ids[session.position : length])
                cache.insert(session)
            assert np.array_equal(got, alone(ids[:length], model))


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97])
def test_a_full_prompt_hit_runs_one_token(cache, length):
    ids = [i % 61 for i in range(length)]
    assert ask(cache, ids).matched == 0
    for _ in range(2):
        assert ask(cache, ids).matched == length - 1
    assert ask(cache, ids + [60]).matched == length


def test_an_edited_history_matches_up_to_the_edit(cache, rng):
    ids = rng.integers(0, 61, 100).tolist()
    ask(cache, ids)
    for at in (0, 1, 31, 32, 50, 64, 98):
        edited = ids[:at] + [(ids[at] + 1) % 61] + ids[at + 1 :]
        found = MODEL.generate(edited, 5, cache=cache)
        assert found.cache.matched >= at
        assert found.ids == MODEL.generate(edited, 5).ids
    assert ask(cache, ids, 5).matched == 99


def test_generated_tokens_are_reused(cache):
    made = MODEL.generate([1, 2, 3], 60, cache=cache)
    assert ask(cache, [1, 2, 3, *made.ids[:-1], 7]).matched == 62


def test_two_sessions_share_a_prefix_and_the_first_ends(cache, rng):
    shared = rng.integers(0, 61, 70).tolist()
    ask(cache, shared)
    first, _ = cache.session(shared + [1])
    second, _ = cache.session(shared + [2])
    assert first.pages == second.pages
    first.extend(shared[first.position :] + [1])
    first.close()
    cache.evict()
    with second:
        got = second.extend(shared[second.position :] + [2])
    assert np.array_equal(got, alone(shared + [2]))


def test_a_stored_entry_is_not_changed_by_what_follows_it(cache):
    ids = [3] * 40
    session, _ = cache.session(ids)
    with session:
        session.extend(ids)
        cache.insert(session)
        session.extend([4] * 10)
        cache.insert(session)
    session, found = cache.session(ids + [5, 5])
    with session:
        assert found.matched == 40
        assert np.array_equal(session.extend([5, 5]), alone(ids + [5, 5]))


def test_no_page_is_copied_for_full_pages(cache, monkeypatch):
    ids = [i % 61 for i in range(200)]
    ask(cache, ids)
    copies = []
    copy = MODEL.pool.copy
    monkeypatch.setattr(MODEL.pool, "copy", lambda *given: copies.append(given) or copy(*given))
    session, _ = cache.session(ids[:192] + [9])
    with session:
        session.extend([9])
    assert copies == []
    session, _ = cache.session(ids)
    with session:
        session.extend(ids[-1:])
    assert len(copies) == 1


@pytest.mark.parametrize("length", [511, 512, 513, 1024, 1100])
def test_prefixes_longer_than_a_pass_or_a_slab(length, rng):
    model = random_model("int8", context=1200)
    ids = rng.integers(0, 61, length).tolist()
    with cq.PrefixCache(model) as cache:
        for more in ([1], [2, 3], rng.integers(0, 61, 70).tolist()):
            session, found = cache.session(ids + more)
            with session:
                assert np.array_equal(session.extend((ids + more)[session.position :]), alone(ids + more, model))
                cache.insert(session)
    assert found.matched >= length


def test_a_page_that_is_computed_twice_is_kept_once(cache):
    ids = [5] * 64
    with MODEL.session() as a, MODEL.session() as b:
        for session in (a, b):
            session.extend(ids)
            cache.insert(session)
        assert a.pages == b.pages
        assert MODEL.pool.in_use == 2


def test_a_budget_of_one_page(rng):
    with cq.PrefixCache(MODEL, MODEL.pool.page_bytes) as cache:
        a, b = rng.integers(0, 61, 80).tolist(), rng.integers(0, 61, 10).tolist()
        assert [ask(cache, ids, 4).matched for ids in (a, a, b, b, a)] == [0, 32, 0, 9, 0]
        found = cache.statistics
        assert (found.pages, found.free, found.requests) == (1, 0, 5)
        assert found.inserted - found.evicted == 1


def test_parts_of_encoded_pages_are_not_matched(cache, monkeypatch):
    monkeypatch.setattr(MODEL.pool, "divisible", lambda index: index == 0)
    ids = [i % 61 for i in range(80)]
    ask(cache, ids)
    for length, matched in ((20, 19), (40, 32), (64, 32), (65, 64), (75, 74), (80, 79)):
        session, found = cache.session(ids[:length])
        session.close()
        assert found.matched == matched
    assert ask(cache, ids[:50]).matched == 32


def test_a_pinned_prompt_stays(rng):
    system = rng.integers(0, 61, 50).tolist()
    with cq.PrefixCache(MODEL, 3 * MODEL.pool.page_bytes) as cache:
        cache.pin(system)
        cache.pin(system)
        for _ in range(5):
            ask(cache, rng.integers(0, 61, 60).tolist())
        assert ask(cache, system + [1]).matched == 50
        with pytest.raises(BudgetError, match="a prompt of 70 tokens"):
            cache.pin([1] * 70)
        cache.unpin(system)
        with pytest.raises(InputError, match="not pinned"):
            cache.unpin(system)
        assert cache.statistics.in_use == 0


def test_a_pin_on_part_of_a_longer_page_keeps_that_page(rng):
    ids = rng.integers(0, 61, 64).tolist()
    with cq.PrefixCache(MODEL) as cache:
        ask(cache, ids)
        cache.pin(ids[:40])
        cache.evict()
        assert ask(cache, ids[:41]).matched == 40


def test_statistics_add_up(rng):
    ids = rng.integers(0, 61, 100).tolist()
    with cq.PrefixCache(MODEL) as cache:
        requests = [ask(cache, ids[:n]) for n in (100, 40, 100)]
        found = cache.statistics
        assert (found.requests, found.prompt) == (3, 240)
        assert found.matched == sum(r.matched for r in requests) == 39 + 99
        assert found.recomputed == 240 - found.matched
        assert found.hit_rate == found.matched / 240
        assert found.inserted == sum(r.inserted for r in requests) == 4
        assert requests[0].nbytes == found.nbytes == 4 * MODEL.pool.page_bytes
        assert requests[2].hit_rate == 0.99
        assert found.seconds == pytest.approx(sum(r.seconds for r in requests))


def test_another_model_or_scheme_is_refused(cache):
    other = random_model("int8")
    with pytest.raises(InputError, match="fingerprint"):
        other.generate([1, 2], 2, cache=cache)
    with other.session() as session:
        session.extend([1, 2])
        with pytest.raises(InputError, match="int8"):
            cache.insert(session)
    copy = random_model()
    assert copy.generate([1, 2], 2, cache=cache).ids == MODEL.generate([1, 2], 2).ids
    with copy.session() as session, pytest.raises(InputError, match="another copy"):
        cache.insert(session)


def test_schemes_with_a_scale_for_all_tokens_are_refused():
    with pytest.raises(InputError, match="int8-tensor"):
        cq.PrefixCache(random_model("int8-tensor"))


def test_bad_budgets_and_prompts(cache):
    for budget in (0, -1, MODEL.pool.page_bytes - 1):
        with pytest.raises(InputError, match="holds no page"):
            cq.PrefixCache(MODEL, budget)
    for prompt in ([], [61], "text"):
        for call in (cache.session, cache.pin):
            with pytest.raises(InputError):
                call(prompt)
    assert cache.statistics.requests == 0


def test_two_caches_do_not_share_a_session(cache):
    with cq.PrefixCache(MODEL) as other, MODEL.session() as session:
        session.extend([1] * 40)
        cache.insert(session)
        with pytest.raises(cq.errors.CachequantError, match="belongs to a cache already"):
            other.insert(session)
        assert other.statistics.pages == 0


def test_what_was_stored_before_a_stop_is_kept_and_non_finite_logits_are_not(cache, monkeypatch):
    _, drawn = MODEL.start([1] * 40, 20, cache=cache)
    next(drawn), next(drawn)
    drawn.close()
    assert cache.statistics.pages == 2
    with monkeypatch.context() as patch:
        patch.setattr(MODEL._decoder, "logits", lambda h: np.full((len(h), 61), np.nan, np.float32))
        with pytest.raises(NumericsError):
            MODEL.generate([2] * 40, 5, cache=cache)
    assert cache.statistics.pages == 2
    assert MODEL.pool.in_use == 2


def test_eight_threads_of_requests(rng):
    prompts = [rng.integers(0, 61, n).tolist() for n in (40, 64, 70, 33)]
    prompts += [p[:30] + [1] * 20 for p in prompts] + [p + [2, 3] for p in prompts]
    want = {tuple(p): MODEL.generate(p, 6).ids for p in prompts}
    with cq.PrefixCache(MODEL, 8 * MODEL.pool.page_bytes) as cache:

        def work(seed):
            for i in np.random.default_rng(seed).integers(0, len(prompts), 25):
                if i % 5 == 0:
                    cache.evict(1)
                assert MODEL.generate(prompts[i], 6, cache=cache).ids == want[tuple(prompts[i])]

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        found = cache.statistics
        assert found.requests == 200
        assert (found.in_use, found.free + found.evictable) == (0, 8)
        assert MODEL.pool.in_use == found.pages
