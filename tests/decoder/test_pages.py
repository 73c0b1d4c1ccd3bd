"""A model over coded pages: the same bits however tokens arrive, and whichever way the blocks are run."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError
from cachequant.kernels import get_threads, set_threads
from cachequant.kv import calibration
from helpers import checkpoint, random_splits

FORMATS = ["fp16", "int8", "k4v4", "k3v2", "k2v2", "k16v3", "k4v4,0:k8v8", "k4v4+exact2"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = checkpoint("llama-coded", str(tmp_path_factory.mktemp("models")))
    return {scheme: cq.load(folder, scheme) for scheme in ("fp32", "int8", "bfp8", "w8a12")}


def whole(model, ids):
    with model.session() as session:
        return session.extend(ids, logits="all")


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("scheme", ["fp32", "int8", "bfp8", "w8a12"])
def test_bits_do_not_depend_on_chunks_threads_or_regions(models, rng, scheme, kv):
    model, ids = models[scheme].with_kv(kv, "none"), rng.integers(0, 131, 96)
    want, threads = whole(model, ids).tobytes(), get_threads()
    for splits in (random_splits(rng, 96, 7), [slice(i, i + 1) for i in range(96)]):
        with model.session() as session:
            assert np.concatenate([session.extend(ids[s], logits="all") for s in splits]).tobytes() == want
    try:
        set_threads(1)
        assert whole(model, ids).tobytes() == want
    finally:
        set_threads(threads)
    layered = cq.decoder.model.Model(model._asset, model._decoder.watched(lambda *seen: None), model.pages)
    assert whole(layered, ids).tobytes() == want


def test_wider_codes_are_closer(models, rng):
    ids = rng.integers(0, 131, 96)
    exact = whole(models["fp32"], ids)
    errors = [
        np.abs(whole(models["fp32"].with_kv(kv, "none"), ids) - exact).mean() for kv in ("fp16", "int8", "k4v4", "k2v2")
    ]
    assert errors == sorted(errors)
    assert np.array_equal(whole(models["fp32"].with_kv("k4v4", "none"), ids[:33]), exact[:33])


def test_pages_go_back(models, rng):
    model = models["fp32"].with_kv("k4v4", "none")
    session = model.session()
    session.extend(rng.integers(0, 131, 90), logits="none")
    assert [model.pool.is_coded(page) for page in session.pages] == [False, True, False]  # first and last stay exact
    assert model.pool.in_use == 3
    assert session.nbytes == 2 * model.pool.page_bytes + model.pool.coded_bytes
    session.close()
    assert model.pool.in_use == 0


def test_a_calibrated_basis_fits_what_it_saw(models, rng):
    model = models["fp32"]
    decoder, c = model._decoder, model.config
    moments = calibration.moments(decoder, rng.integers(0, 131, 192).tolist(), 96)
    fitted = calibration.fitted(moments, calibration.grams(model._asset), "test", feedback=False)
    entry = fitted.array.astype(np.float64)
    d = c.head_dim
    into, out = entry[..., 1 : 1 + d, :], entry[..., 1 + d :, :]
    np.testing.assert_allclose(
        np.swapaxes(into[:, :, 0], -1, -2) @ out[:, :, 0], np.eye(d) + 0 * into[:, :, 0], atol=1e-3
    )
    np.testing.assert_allclose(into[:, :, 1] @ out[:, :, 1], np.eye(d) + 0 * into[:, :, 0], atol=1e-3)
    # balanced: the covariance of what is coded and the weights of its error are the same matrix
    second = moments.second - moments.mean[..., :, None] * moments.mean[..., None, :]
    coded = np.swapaxes(into, -1, -2) @ second @ into
    weights = np.stack([out[:, :, 0].swapaxes(-1, -2) @ moments.queries @ out[:, :, 0]], 2)
    np.testing.assert_allclose(coded[:, :, :1], weights, rtol=0.02, atol=0.02 * np.abs(weights).max())


def test_feedback_makes_all_steps_of_whitened_vectors_cost_the_same(models, rng):
    model = models["fp32"]
    d, moments = (
        model.config.head_dim,
        calibration.moments(model._decoder, rng.integers(0, 131, 192).tolist(), 96),
    )
    gram = calibration.grams(model._asset)
    fitted = calibration.fitted(moments, gram, "test")
    second = moments.second - moments.mean[..., :, None] * moments.mean[..., None, :]
    for side, weights in enumerate((moments.queries, gram)):
        into, out = (fitted.array[:, :, side, at : at + d].astype(np.float64) for at in (1, 1 + d))
        if side == 0:
            out = out.swapaxes(-1, -2)
        np.testing.assert_allclose(into @ out, np.eye(d) + 0 * into, atol=1e-3)
        white = into.swapaxes(-1, -2) @ second[:, :, side] @ into
        np.testing.assert_allclose(white, np.eye(d) + 0 * into, atol=0.01)
        cost = out @ weights @ out.swapaxes(-1, -2)
        n = np.zeros_like(cost)
        n[..., *np.tril_indices(d, -1)] = fitted.feedback[:, :, side]
        n += np.eye(d)
        steps = np.linalg.inv(n).swapaxes(-1, -2) @ cost @ np.linalg.inv(n)  # a multiple of 1, but for the damping
        pivot = np.trace(steps, axis1=-2, axis2=-1)[..., None, None] / d
        assert (np.abs(steps - pivot * np.eye(d)) < 0.35 * pivot).all()
        assert (np.trace(cost, axis1=-2, axis2=-1)[..., None, None] / d > pivot).all()


def test_refusals_come_before_compute(models):
    with pytest.raises(InputError, match="calibration 'best' is not one of auto, none"):
        models["fp32"].with_kv("k4v4", "best")
    with pytest.raises(InputError, match="names layer 2"):
        models["fp32"].with_kv("k4v4,2:k8v8")


def test_fingerprints_name_format_and_basis(models):
    seen = {models["fp32"].with_kv(kv, "none").fingerprint for kv in ("fp32", "fp16", "k4v4", "k4v4+exact2", "k4v3")}
    assert len(seen) == 5
