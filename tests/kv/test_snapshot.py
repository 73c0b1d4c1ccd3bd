"""Saved sessions: the same bits after loading, and a typed error for everything else."""

import json
import os
import signal
import time

import numpy as np
import pytest

import cachequant as cq
from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.errors import InputError
from cachequant.kv import snapshot
from cachequant.kv.snapshot import SnapshotError
from helpers import random_model

MODEL = random_model()
KEY = b"a secret"


@pytest.fixture(autouse=True)
def no_page_leaks():
    yield
    assert MODEL.pool.in_use == 0


@pytest.fixture
def saved(tmp_path, rng):
    path = tmp_path / "chat.safetensors"
    with MODEL.session() as session:
        session.extend(rng.integers(0, 61, 70))
        session.save(path)
    return path


def rewrite(path, ids=None, pages=None, key=None, drop=(), extra=(), **metadata):
    """A file with other contents whose digests fit them."""
    file = TensorFile(path)
    ids = file.raw("ids").copy() if ids is None else np.asarray(ids, np.int32)
    pages = file.raw("pages").copy() if pages is None else pages
    codes = file.raw("codes").copy()
    given = {k: v for k, v in (file.metadata | metadata).items() if k not in ("sha256", snapshot.SIGNATURE, *drop)}
    given |= snapshot._digests(given, [ids, pages, codes], key)
    tensors = {"ids": ids, "pages": pages, "codes": codes} | dict(extra)
    kinds = {"int32": "I32", "uint8": "U8", "float32": "F32"}
    writer = TensorWriter(path, {n: (kinds[t.dtype.name], t.shape) for n, t in tensors.items()}, given)
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    writer.close()


@pytest.mark.parametrize("scheme", ["fp32", "int8", "bfp8", "w8a12", "int8-hadamard", "int8+head"])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_a_restored_session_gives_the_same_bits(scheme, length, tmp_path, rng):
    model, ids = random_model(scheme), rng.integers(0, 61, length)
    with model.session() as session:
        session.extend(ids)
        session.save(tmp_path / "s", KEY)
        with (
            model.load_session(tmp_path / "s", KEY) as restored,
            random_model(scheme).load_session(tmp_path / "s", KEY) as elsewhere,
        ):
            assert restored.ids == session.ids
            want = session.extend([1, 2, 3], "all")
            assert np.array_equal(restored.extend([1, 2, 3], "all"), want)
            assert np.array_equal(elsewhere.extend([1, 2, 3], "all"), want)


def test_tokens_that_were_not_run_are_saved_too(tmp_path):
    with MODEL.session() as session:
        session.save(tmp_path / "empty")
        made = session.generate([1, 2, 3], 10)
        session.save(tmp_path / "s")
    with MODEL.load_session(tmp_path / "s") as restored:
        assert (restored.position, restored.stored) == (13, 12)
        assert restored.generate(None, 5).ids == MODEL.generate([1, 2, 3, *made.ids], 5).ids
    with MODEL.load_session(tmp_path / "empty") as restored:
        assert restored.generate([1, 2, 3], 10).ids == made.ids


def test_a_file_is_little_larger_than_its_pages(saved):
    assert saved.stat().st_size <= 3 * MODEL.pool.page_bytes + 70 * 4 + 1500


def test_nothing_of_a_longer_branch_is_written(tmp_path):
    with MODEL.session() as session:
        session.extend([5] * 30)
        session.rewind(4)
        session.save(tmp_path / "s")
    rows = cq.kv.pages.exact_rows(TensorFile(tmp_path / "s").raw("pages")[0], 2, 2, 8)
    assert all(r[..., :4, :].any() and not r[..., 4:, :].any() for r in rows)


def test_signatures(saved, tmp_path):
    with MODEL.load_session(saved) as session:
        session.save(tmp_path / "signed", KEY)
    MODEL.load_session(tmp_path / "signed", KEY).close()
    for path, key, match in (
        (tmp_path / "signed", b"another", "hmac_sha256 does not fit"),
        (tmp_path / "signed", None, "is signed"),
        (saved, KEY, "is not signed"),
    ):
        with pytest.raises(SnapshotError, match=match):
            MODEL.load_session(path, key)
    rewrite(tmp_path / "signed", ids=[1] * 70, key=b"forged")
    with pytest.raises(SnapshotError, match="hmac_sha256"):
        MODEL.load_session(tmp_path / "signed", KEY)
    for key in (b"", "text"):
        with pytest.raises(InputError, match="bytes"):
            MODEL.load_session(saved, key)


NAN = np.full((3, MODEL.pool.page_bytes // 4), np.nan, np.float32).view(np.uint8)
MALFORMED = {
    "version": (dict(format_version="1"), "format version '1'"),
    "no version": (dict(drop=["format_version"]), "format version None"),
    "fingerprint": (dict(fingerprint="0" * 64), "fingerprint"),
    "scheme": (dict(scheme="int8"), "scheme is 'int8'"),
    "page format": (dict(page_format="k4v4"), "page_format is 'k4v4'"),
    "calibration": (dict(calibration="enwiki"), "calibration is 'enwiki'"),
    "codec seed": (dict(codec_seed="1"), "codec_seed is '1'"),
    "kernel set": (dict(kernel_set="other"), "kernel_set is 'other'"),
    "tokenizer": (dict(tokenizer="1"), "tokenizer is '1'"),
    "unknown metadata": (dict(colour="red"), "'colour'"),
    "missing metadata": (dict(drop=["stored"]), "'stored'"),
    "tokens not a number": (dict(tokens="seventy"), "tokens is 'seventy'"),
    "negative tokens": (dict(tokens="-1"), "tokens is '-1'"),
    "huge tokens": (dict(tokens="9" * 40), "not a number of tokens"),
    "other number of tokens": (dict(tokens="71"), "71 tokens"),
    "more stored than tokens": (dict(stored="71"), "71 of them"),
    "fewer pages than stored": (dict(stored="20"), "in 1 pages"),
    "page lengths": (dict(pages=np.zeros((3, 64), np.uint8)), r"pages of shape \(3, 64\)"),
    "flat pages": (dict(pages=np.zeros(64, np.uint8)), "and pages of shapes"),
    "one page more": (dict(pages=np.zeros((4, MODEL.pool.page_bytes), np.uint8)), "3 pages"),
    "id outside the vocabulary": (dict(ids=[61] * 70), "token id 61 at 0"),
    "negative id": (dict(ids=[-1] * 70), "token id -1"),
    "longer than the context": (
        dict(ids=[1] * 257, tokens="257"), "257 tokens do not fit",
    ),
    "not finite": (dict(pages=NAN), "page 0 holds values that are not finite"),
    "another tensor": (dict(extra={"more": np.zeros(3, np.float32)}.items()), "tensors"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "match"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_refused_before_any_page_is_taken(saved, change, match, monkeypatch):
    rewrite(saved, **change)
    monkeypatch.setattr(MODEL.pool, "acquire", lambda: pytest.fail("took a page"))
    with pytest.raises(SnapshotError, match=match):
        MODEL.load_session(saved)


def test_truncated_files_trailing_bytes_and_duplicate_names(saved):
    whole = saved.read_bytes()
    for cut in (0, 3, 8, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:cut])
        with pytest.raises(SnapshotError):
            MODEL.load_session(saved)
    saved.write_bytes(whole + b"\0")
    with pytest.raises(SnapshotError, match="trailing"):
        MODEL.load_session(saved)
    length = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + length].decode().rstrip()
    for name in ("ids", "scheme"):
        twice = header.replace(f'"{name}":', f'"{name}":{json.dumps("x")},"{name}":', 1).encode()
        saved.write_bytes(len(twice).to_bytes(8, "little") + twice + whole[8 + length :])
        with pytest.raises(SnapshotError, match="twice"):
            MODEL.load_session(saved)
    saved.unlink()
    with pytest.raises(SnapshotError):
        MODEL.load_session(saved)


def test_every_changed_byte_is_noticed(saved, rng):
    """Mutated files give a typed error or the same session: never another one, a crash or a page that is kept."""
    with MODEL.load_session(saved) as session:
        ids, want = session.ids, [MODEL.pool.read(p).tobytes() for p in session.pages]
    whole = saved.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for i in range(10_000):
        data = bytearray(whole)
        for at in rng.integers(0, header if i % 2 else len(whole), rng.integers(1, 4)):
            at = min(int(at), len(data) - 1)
            kind = rng.integers(0, 4)
            if kind == 0:
                data[at] ^= 1 << int(rng.integers(0, 8))
            elif kind == 1:
                data[at] = rng.integers(0, 256)
            elif kind == 2:
                del data[at : at + int(rng.integers(1, 9))]
            else:
                data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        saved.write_bytes(data)
        try:
            session = MODEL.load_session(saved)
        except SnapshotError:
            refused += 1
        else:
            with session:
                assert session.ids == ids
                assert [MODEL.pool.read(p).tobytes() for p in session.pages] == want
        assert MODEL.pool.in_use == 0
    assert refused > 9_000


def test_a_save_that_fails_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr(TensorWriter, "close", lambda self: (_ for _ in ()).throw(OSError("disk full")))
    with MODEL.session() as session:
        session.extend([1])
        with pytest.raises(OSError, match="disk full"):
            session.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("step", ["ids", "pages", "codes", "fsync", "replace"])
def test_a_process_killed_while_it_saves_leaves_the_old_file(saved, step, monkeypatch):
    before, (arrived, tell) = saved.read_bytes(), os.pipe()

    def stop(*given):
        os.write(tell, b"here")
        time.sleep(60)

    write = TensorWriter.write
    if step in ("fsync", "replace"):
        monkeypatch.setattr(os, step, stop)
    else:
        monkeypatch.setattr(
            TensorWriter, "write", lambda self, name, tensor: stop() if name == step else write(self, name, tensor)
        )
    with MODEL.session() as session:
        session.extend([1] * 40)
        child = os.fork()  # runs no kernel
        if not child:
            try:
                session.save(saved)
            finally:
                os._exit(0)
        try:
            assert os.read(arrived, 4) == b"here"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(arrived), os.close(tell)
        monkeypatch.undo()
        assert saved.read_bytes() == before
        MODEL.load_session(saved).close()
        session.save(saved)
    with MODEL.load_session(saved) as session:
        assert session.ids == [1] * 40


def test_schemes_with_a_scale_for_all_tokens_refuse(saved, tmp_path):
    model = random_model("int8-tensor")
    with model.session() as session, pytest.raises(InputError, match="int8-tensor"):
        session.save(tmp_path / "s")
    with pytest.raises(InputError, match="int8-tensor"):
        model.load_session(saved)


def test_replay_finds_the_first_difference():
    with MODEL.session() as session:
        session.generate([1, 2, 3], 20)
        assert session.replay(3).difference is None
        again = session.replay(10)
        assert (again.start, again.ids, again.difference) == (10, session.ids[10:], None)
        assert session.replay(session.position).ids == []
        with session.fork(12) as edited:
            edited.append([(session.ids[12] + 1) % 61, *session.ids[13:]])
            assert edited.replay(3).difference == 12
        for bad in (0, 24, -1):
            with pytest.raises(InputError, match="replay|fork"):
                session.replay(bad)
        before = session.ids
        drawn = session.generate([4], 8, temperature=1.5, seed=3)
        assert session.replay(len(before) - 8, temperature=1.5, seed=3).ids == drawn.ids
