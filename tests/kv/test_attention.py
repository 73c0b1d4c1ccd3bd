"""Attention over page formats: what a position sees (C2), and the same bits however tokens arrive (C1)."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import naive_attention as naive
from cachequant import kernels
from cachequant.errors import InputError
from cachequant.kernels import tiles
from cachequant.kv import codec, formats
from cachequant.kv.attention import Attention
from cachequant.kv.basis import Basis, plain

FORMATS = ["fp16", "int8", "k4v4", "k4v3", "k3v3", "k2v2", "k4v2", "k16v4", "k3v32", "k4v4+exact2", "k8v2+exact0"]
PAGE = formats.PAGE
HERE = Path(__file__).parent


def random(tokens, heads, kv_heads, d, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((tokens, h, d), dtype=np.float32) for h in (heads, kv_heads, kv_heads)]


def on_grid(x):
    """Rounded to 1/256, so that taking a mean off and multiplying by powers of two is exact."""
    return np.round(x * 256) / np.float32(256)


def basis(kv_heads, d, seed=1, exact=False):
    """A basis with means and matrices that are not orthonormal, as calibration gives; `exact` if no float rounds."""
    rng = np.random.default_rng(seed)
    turn = np.eye(d)[rng.permutation(d)] * rng.choice([-1.0, 1.0], d) if exact else codec.rotation(d)
    array = np.empty((1, kv_heads, 2, 1 + 2 * d, d), np.float32)
    for head in range(kv_heads):
        for side in range(2):
            t = np.diag(2.0 ** rng.integers(-1, 2, d))
            array[0, head, side, 0] = on_grid(rng.standard_normal(d))
            array[0, head, side, 1 : 1 + d] = t @ turn
            out = turn.T @ np.linalg.inv(t)
            array[0, head, side, 1 + d :] = out.T if side == 0 else out
    return Basis(array, "test")


def restored(x, bits, kv_heads, basis, side):
    """What codes of x (T, kv_heads, d) stand for."""
    if bits == 32:
        return x
    if bits == 16:
        return x.astype(np.float16).astype(np.float32)
    out, d = np.empty_like(x), x.shape[2]
    for head in range(kv_heads):
        entry = basis.array[0, head, side].astype(np.float64)
        feedback = None if basis.feedback is None else basis.feedback[0, head, side]
        codes, scales = codec.encode(((x[:, head] - entry[0]) @ entry[1 : 1 + d]).astype(np.float32), bits, feedback)
        back = entry[1 + d :].T if side == 0 else entry[1 + d :]
        out[:, head] = codec.decode(codes, scales, bits).astype(np.float64) @ back + entry[0]
    return out


def expected(q, k, v, kv, basis):
    """Position by position: exact rows in its own page and in leading ones, codes elsewhere."""
    format, kv_heads = formats.get(kv), k.shape[1]
    coded = [
        restored(x, bits, kv_heads, basis, side)
        for side, (x, bits) in enumerate(zip((k, v), format.sides, strict=True))
    ]
    exact = (k, v) if format.compressed else coded
    out = np.empty_like(q)
    for t in range(len(q)):
        own, first = t // PAGE * PAGE, format.exact_pages * PAGE
        seen = [
            np.concatenate([e[:first], c[first:own], e[max(first, own) :]]) for e, c in zip(exact, coded, strict=True)
        ]
        out[t : t + 1] = naive.attention(q[t : t + 1], *seen, t, q.shape[2] ** -0.5)
    return out


def run(q, k, v, kv, basis, cuts=()):
    layer, outs = Attention(q.shape[1], *k.shape[1:], kv=kv, basis=basis), []
    for low, high in zip([0, *cuts], [*cuts, len(q)], strict=True):
        layer.append(k[low:high], v[low:high])
        outs.append(layer.attend(q[low:high]))
    return np.concatenate(outs)


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("heads, kv_heads, d", [(9, 3, 64), (4, 4, 16), (2, 1, 80), (5, 1, 128)])
def test_a_position_sees_exact_rows_of_its_page_and_codes_elsewhere(heads, kv_heads, d, kv):
    q, k, v = map(on_grid, random(330, heads, kv_heads, d))
    exact, fitted = basis(kv_heads, d, exact=True), basis(kv_heads, d)
    # queries and weights that meet codes are whole numbers of 16 bits
    close = 5e-4 if formats.get(kv).compressed else 1e-5
    np.testing.assert_allclose(run(q, k, v, kv, exact), expected(q, k, v, kv, exact), atol=close)
    # with a real rotation a value between two levels may fall either way, as its sum is rounded
    np.testing.assert_allclose(run(q, k, v, kv, fitted), expected(q, k, v, kv, fitted), atol=0.05)


@pytest.mark.parametrize("kv", ["int8", "k4v3", "k2v2", "k3v16"])
def test_each_side_of_each_head_feeds_its_errors_back(kv):
    q, k, v = map(on_grid, random(170, 6, 3, 32))
    fed = np.random.default_rng(2).standard_normal((1, 3, 2, 32 * 31 // 2)).astype(np.float32) / 4
    given = Basis(basis(3, 32, exact=True).array, "test", fed)
    np.testing.assert_allclose(run(q, k, v, kv, given), expected(q, k, v, kv, given), atol=1e-3)
    assert np.abs(run(q, k, v, kv, given) - run(q, k, v, kv, Basis(given.array, "test"))).max() > 1e-2
    with pytest.raises(InputError, match="feedback of shape"):
        Attention(6, 3, 32, kv=kv, basis=Basis(given.array, "test", fed[:, :, :1]))


@pytest.mark.parametrize("kv", ["fp32", *FORMATS])
def test_bits_do_not_depend_on_chunks_or_threads(kv):
    q, k, v = random(601, 6, 2, 32)
    fed = np.random.default_rng(3).standard_normal((1, 2, 2, 32 * 31 // 2)).astype(np.float32) / 8
    fitted, before = Basis(basis(2, 32).array, "test", fed), kernels.get_threads()
    whole = run(q, k, v, kv, fitted)
    rng = np.random.default_rng(5)
    for _ in range(3):
        cuts = sorted(rng.choice(np.arange(1, 601), 9, replace=False).tolist())
        assert run(q, k, v, kv, fitted, cuts).tobytes() == whole.tobytes()
    try:
        kernels.set_threads(1)
        assert run(q, k, v, kv, fitted, range(1, 601)).tobytes() == whole.tobytes()
    finally:
        kernels.set_threads(before)


def digest():
    """Of what attention gives for many rows, then for few."""
    rng, found = np.random.default_rng(0), hashlib.sha256()
    for kv in ("int8", "k4v3", "k2v2", "k3v4"):
        layer = Attention(6, 2, 64, kv=kv)
        q, k, v = (rng.standard_normal((150, heads, 64), dtype=np.float32) for heads in (6, 2, 2))
        for cut in (slice(0, 149), slice(149, 150)):
            layer.append(k[cut], v[cut])
            found.update(layer.attend(q[cut]).tobytes())
    return tiles.BYTES, found.hexdigest()


def test_pairs_of_int16_give_the_bits_of_fours_of_bytes():
    if not tiles.BYTES:
        pytest.skip("this CPU, or CACHEQUANT_KERNELS, multiplies pairs of int16 in any case")
    program = "import test_attention as t\nprint(*t.digest())"
    environment = os.environ | {"CACHEQUANT_KERNELS": "avx2", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert printed.split() == ["False", digest()[1]]


def test_a_fault_in_one_page_changes_only_what_may_see_it():
    q, k, v = random(200, 2, 2, 16)
    clean = run(q, k, v, "k4v4", None)
    k[70] += 1  # page 2: coded for pages after it, exact within it
    dirty = run(q, k, v, "k4v4", None)
    assert clean[:70].tobytes() == dirty[:70].tobytes()
    assert all((clean[t] != dirty[t]).any() for t in range(70, 200))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e17])
def test_extreme_magnitudes(size):
    q, k, v = random(100, 2, 2, 16)
    out = run(q * 0, k * np.float32(size), v * np.float32(size), "k3v3", None)
    want = np.cumsum(v.astype(np.float64) * size, 0) / np.arange(1, 101)[:, None, None]
    assert np.isfinite(out).all()
    assert np.abs(out - want).max() <= 0.2 * size


def test_refusals():
    with pytest.raises(InputError, match="5 query heads cannot share 2"):
        Attention(5, 2, 16)
    with pytest.raises(InputError, match="head size 20"):
        Attention(2, 2, 20, kv="k4v4")
    layer, (q, k, v) = Attention(2, 2, 16, kv="k4v4"), random(4, 2, 2, 16)
    for bad in (np.nan, np.inf, 2e18):
        k[1, 0, 3] = bad
        with pytest.raises(InputError, match="keys have to be finite"):
            layer.append(k, v)
    assert layer.position == 0
    layer.append(v, v)
    with pytest.raises(InputError, match="5 queries, but the last append stored 4"):
        layer.attend(np.concatenate([q, q[:1]]))
    with pytest.raises(InputError, match=r"queries of shape \(4, 3, 16\)"):
        layer.attend(np.zeros((4, 3, 16), np.float32))
    with pytest.raises(InputError, match="a basis of shape"):
        Attention(2, 2, 32, kv="k4v4", basis=plain(1, 2, 16))


@pytest.mark.parametrize("kv", ["fp32", *FORMATS])
def test_bytes_are_those_of_the_calculator(kv):
    format, tokens, d, kv_heads = formats.get(kv), 32 * 9 + 5, 64, 3
    _, k, v = random(tokens, 3, kv_heads, d)
    layer = Attention(3, kv_heads, d, kv=kv)
    layer.append(k, v)
    layer.append(k[:1], v[:1])
    held = layer.bytes() - (plain(1, kv_heads, d).nbytes if format.compressed else 0)
    bits = format.bits_per_value(1, d, 32 * 10)  # the last page counts whole
    exact = formats.exact_bytes(1, kv_heads, d)
    if not format.paged:
        assert held == 10 * exact
    else:
        coded = sum(format.side_sizes(1, kv_heads, d))
        kept = min(format.exact_pages, 9) + 1
        assert held == kept * exact + (10 - kept) * coded
        assert bits <= 8 * held / (320 * 2 * kv_heads * d)


def test_it_is_found_where_users_look():
    import cachequant as cq

    assert cq.kv.Attention is Attention
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        cq.kv.Nothing  # noqa: B018
