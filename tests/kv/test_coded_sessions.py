"""Branches, prefix hits and saved sessions over coded pages: the bits of a session that saw everything itself."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.kv import snapshot
from cachequant.kv.pages import exact_rows
from cachequant.kv.snapshot import SnapshotError
from helpers import checkpoint

UNCOMPRESSED = ["fp16", "k16v32,1:k32v16"]
FORMATS = [*UNCOMPRESSED, "int8", "k4v4", "k3v2", "k2v2,1:k16v4", "k4v4+exact2", "k3v3+exact0"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return cq.load(checkpoint("llama-coded", str(tmp_path_factory.mktemp("models"))), "int8")


@pytest.fixture(params=FORMATS)
def model(base, request):
    return base.with_kv(request.param, "none")


def alone(model, ids):
    with model.session() as session:
        return session.extend(ids).tobytes()


@pytest.mark.parametrize("at", [1, 31, 32, 33, 63, 64, 70])
def test_branches_and_rewinds(model, rng, at):
    ids, other = rng.integers(0, 131, 75).tolist(), rng.integers(0, 131, 15).tolist()
    with model.session() as session:
        session.extend(ids)
        with session.fork(at) as branch:
            assert branch.extend(other).tobytes() == alone(model, ids[:at] + other)
        assert session.extend(other).tobytes() == alone(model, ids + other)
        session.rewind(at)
        assert at - (31 if model.kv.compressed else 0) <= session.stored <= at
        assert session.extend(other).tobytes() == alone(model, ids[:at] + other)
    assert model.pool.in_use == 0


def test_a_hit_has_the_bits_of_a_miss(model, rng):
    shared = rng.integers(0, 131, 70).tolist()
    with cq.PrefixCache(model) as cache:
        for length in (70, 70, 64, 33, 32, 31, 65):
            prompt = shared[:length] + rng.integers(0, 131, 9).tolist()
            session, request = cache.session(prompt)
            with session:
                assert session.extend(prompt[session.position :]).tobytes() == alone(model, prompt)
                cache.insert(session, request)
        assert request.matched >= 64
        assert cache.statistics.nbytes == sum(model.pool.size(page) for _, page in cache.walk())
    assert model.pool.in_use == 0


@pytest.mark.parametrize("kv", UNCOMPRESSED)
def test_uncompressed_pages_are_hit_at_any_token(base, rng, tmp_path, kv):
    """As float32 pages are: the rows of a page are the same, whether it is full or being filled."""
    model, ids = base.with_kv(kv), rng.integers(0, 131, 80).tolist()
    with cq.PrefixCache(model) as cache:
        model.generate(ids, 1, cache=cache)
        for at in (1, 20, 31, 32, 33, 50, 63, 64, 70):
            prompt = ids[:at] + [(ids[at] + 1) % 131, 5]
            session, request = cache.session(prompt)
            with session:
                assert request.matched == session.stored == at
                session.save(tmp_path / "s")
                assert session.extend(prompt[at:]).tobytes() == alone(model, prompt)
            with model.load_session(tmp_path / "s") as restored:
                assert restored.extend(prompt[at:]).tobytes() == alone(model, prompt)
        model.generate(ids, 1, cache=cache)  # what others shared is as it was
        assert cache.session(ids)[1].matched == 79
    model.pool.collect()
    assert model.pool.in_use == 0


@pytest.mark.parametrize("kv", UNCOMPRESSED)
def test_copies_of_uncompressed_pages_hold_the_rows_that_were_written(base, rng, kv):
    model, ids = base.with_kv(kv), rng.integers(0, 131, 33).tolist()
    shape = model.config.layers, model.config.kv_heads, model.config.head_dim
    with model.session() as filling, model.session() as full:
        filling.extend(ids[:31])
        full.extend(ids)
        copied = model.pool.copy(full.pages[0], 31)
        for got, want in zip(
            *(exact_rows(model.pool.read(p), *shape) for p in (copied, filling.pages[0])), strict=True
        ):
            assert np.array_equal(got, want) and got[..., 30, :].any() and not got[..., 31, :].any()
        model.pool.release(copied)


def test_generated_ids_do_not_depend_on_the_cache(model):
    with cq.PrefixCache(model, 6 * model.pool.page_bytes) as cache:
        for prompt in ([1, 2, 3] * 12, [1, 2, 3] * 14, [7] * 40, [1, 2, 3] * 12):
            assert model.generate(prompt, 12, cache=cache).ids == model.generate(prompt, 12).ids


@pytest.mark.parametrize("length", [5, 64, 90])
def test_saved_sessions(model, tmp_path, rng, length):
    ids, more = rng.integers(0, 131, length).tolist(), [3, 1, 4]
    with model.session() as session:
        session.extend(ids, "none")
        session.save(tmp_path / "s")
    with model.load_session(tmp_path / "s") as restored:
        assert restored.extend(more).tobytes() == alone(model, ids + more)
    coded = model.kv.compressed
    metadata = TensorFile(tmp_path / "s").metadata
    assert metadata["calibration"] == ("rotation" if coded else "")
    assert metadata["codec_seed"].isdecimal() == coded
    other = model.with_kv("k4v2", "none")
    with pytest.raises(SnapshotError, match="fingerprint"):
        other.load_session(tmp_path / "s")
    assert model.pool.in_use == 0


def test_a_scale_that_is_not_finite_is_refused(base, tmp_path, monkeypatch):
    model = base.with_kv("k4v4", "none")
    with model.session() as session:
        session.extend(np.arange(70) % 131, "none")
        page = next(p for p in session.pages if model.pool.is_coded(p))
        content = model.pool.read(page)
        content[-2:] = (0x80, 0x7F)  # infinity in bfloat16
        model.pool.write(page, content)
        session.save(tmp_path / "s")
    with pytest.raises(SnapshotError, match="page of codes 0 holds scales or values that are not finite"):
        model.load_session(tmp_path / "s")


def test_files_over_codes_with_changed_bytes_are_refused(base, tmp_path, rng):
    """Mutated files give a typed error or the same session, as those of exact pages do."""
    model = base.with_kv("k3v2,1:k16v4", "none")
    with model.session() as session:
        session.extend(np.arange(90) % 131, "none")
        session.save(tmp_path / "s")
        want = session.ids, [model.pool.read(page).tobytes() for page in session.pages]
    whole, refused = (tmp_path / "s").read_bytes(), 0
    header = 8 + int.from_bytes(whole[:8], "little")
    for i in range(500):
        data = bytearray(whole)
        at = int(rng.integers(0, header if i % 2 else len(whole)))
        data[at] ^= 1 << int(rng.integers(0, 8))
        if i % 5 == 0:
            del data[at]
        (tmp_path / "s").write_bytes(data)
        try:
            session = model.load_session(tmp_path / "s")
        except SnapshotError:
            refused += 1
        else:
            with session:
                assert (session.ids, [model.pool.read(page).tobytes() for page in session.pages]) == want
        assert model.pool.in_use == 0
    assert refused > 450


@pytest.mark.parametrize(
    ("codes", "pages", "match"),
    [
        ((0, 1), 3, "pages of shape"),
        ((0, 1), 2, "in 3 pages"),
        ((1, 1), 2, "codes of shape"),
        ((2, None), 1, "pages of shape"),
    ],
)
def test_files_over_codes_with_other_pages_are_refused(base, tmp_path, codes, pages, match):
    model = base.with_kv("k4v4", "none")
    path = tmp_path / "s"
    with model.session() as session:
        session.extend(np.arange(70) % 131, "none")
        session.save(path)
    file, count = TensorFile(path), codes[0]
    size = codes[1] or model.pool.coded_bytes
    tensors = {"ids": file.raw("ids").copy(), "pages": file.raw("pages")[:1].repeat(pages, 0)}
    tensors["codes"] = np.zeros((count, size), np.uint8)
    given = {k: v for k, v in file.metadata.items() if k != "sha256"}
    given |= snapshot._digests(given, list(tensors.values()), None)
    kinds = {"int32": "I32", "uint8": "U8"}
    writer = TensorWriter(path, {n: (kinds[t.dtype.name], t.shape) for n, t in tensors.items()}, given)
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    writer.close()
    with pytest.raises(SnapshotError, match=match):
        model.load_session(path)
    assert model.pool.in_use == 0
