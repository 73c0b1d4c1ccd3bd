"""The decoder against transformers, and contract C1: the same bits whatever the path."""

import numpy as np
import pytest

import cachequant as cq
from cachequant import schemes
from cachequant.decoder.taps import tapped
from cachequant.kernels import get_threads, set_threads
from helpers import TINY, checkpoint, random_splits, transformers_logits, transformers_model

STABLE = [s for s in (*schemes.PRESETS, "int8+head", "bfp8+head:int8", "w8+head") if schemes.get(s).chunk_stable]
GRID = [name for name, scheme in schemes.grid().items() if scheme.chunk_stable]


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(params=TINY)
def tiny(request, root):
    return request.param, checkpoint(request.param, root)


def whole(model, ids):
    with model.session() as session:
        return session.extend(ids, logits="all")


def test_logits_equal_transformers(tiny, rng):
    name, folder = tiny
    ids = rng.integers(0, 131, 90)
    want = transformers_logits(transformers_model(name), ids)
    got = whole(cq.load(folder), ids)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("scheme", STABLE)
def test_any_cut_gives_the_same_bits(tiny, scheme, rng):
    model, ids = cq.load(tiny[1], scheme), rng.integers(0, 131, 75)
    want = whole(model, ids)
    cuts = [random_splits(rng, len(ids), parts) for parts in (2, 5)] + [[slice(i, i + 1) for i in range(len(ids))]]
    for cut in cuts:
        with model.session() as session:
            got = np.concatenate([session.extend(ids[piece], logits="all") for piece in cut])
        assert np.array_equal(got.view(np.int32), want.view(np.int32)), cut


@pytest.mark.parametrize("scheme", GRID)
def test_the_fine_grid_does_not_depend_on_the_cut(scheme, root, rng):
    model, ids = cq.load(checkpoint("llama-gqa-tied", root), scheme), rng.integers(0, 131, 40)
    with model.session() as session:
        got = np.concatenate([session.extend(ids[piece], logits="all") for piece in random_splits(rng, 40, 7)])
    assert np.array_equal(got.view(np.int32), whole(model, ids).view(np.int32))


@pytest.mark.parametrize("scheme", STABLE)
def test_threads_do_not_change_bits(tiny, scheme, rng):
    before, ids = get_threads(), rng.integers(0, 131, 70)
    model = cq.load(tiny[1], scheme)
    try:
        results = []
        for threads in (1, 2):
            set_threads(threads)
            results.append(whole(model, ids))
    finally:
        set_threads(before)
    assert np.array_equal(results[0].view(np.int32), results[1].view(np.int32))


@pytest.mark.parametrize("scheme", [*schemes.PRESETS, "int8+head", "int8+head:int8"])
def test_schemes_stay_close_to_fp32(scheme, root, rng):
    folder, ids = checkpoint("llama-gqa-tied", root), rng.integers(0, 131, 64)
    want, got = whole(cq.load(folder), ids), whole(cq.load(folder, scheme), ids)
    limit = 0.4 if schemes.get(scheme).chunk_stable else 0.6
    assert np.linalg.norm(got - want) < limit * np.linalg.norm(want)
    assert (scheme == "fp32") == np.array_equal(got, want)


def test_last_hidden_and_none_agree_with_all(root, rng):
    model, ids = cq.load(checkpoint("gpt2", root), "int8"), rng.integers(0, 131, 33)
    every = whole(model, ids)
    with model.session() as last, model.session() as hidden, model.session() as none:
        assert np.array_equal(last.extend(ids), every[-1])
        assert np.array_equal(model.head(hidden.extend(ids, logits="hidden")), every)
        assert none.extend(ids[:-1], logits="none") is None
        assert np.array_equal(none.extend(ids[-1:]), every[-1])


def test_with_scheme_shares_what_does_not_change(root, rng):
    model, ids = cq.load(checkpoint("llama-gqa-tied", root)), rng.integers(0, 131, 20)
    derived = model.with_scheme("int8")
    assert derived._decoder.head is model._decoder.head
    assert np.array_equal(whole(derived, ids), whole(cq.load(checkpoint("llama-gqa-tied", root), "int8"), ids))
    assert derived.weight_bytes < model.weight_bytes


@pytest.mark.parametrize("scheme", STABLE)
def test_one_parallel_region_gives_the_bits_of_single_kernels(tiny, scheme, rng):
    model, ids = cq.load(tiny[1], scheme), rng.integers(0, 131, 75)
    want = whole(model, ids)
    model._decoder = tapped(model._decoder, lambda layer, site, x: x)
    assert np.array_equal(whole(model, ids).view(np.int32), want.view(np.int32))
