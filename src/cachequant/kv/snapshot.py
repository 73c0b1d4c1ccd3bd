"""Saved sessions: token ids and pages in a safetensors file that is bound to the model and checked before it is used.

The metadata say what the pages belong to. `sha256` covers the other metadata and all tensors; with a key there is an
HMAC-SHA256 (RFC 2104) of the same, so that nobody without the key can make a file that is accepted.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cachequant.assets import cachedir
from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.errors import AssetError, CachequantError, InputError
from cachequant.kv.checks import require_stable
from cachequant.kv.codec import SEED
from cachequant.kv.encoded import finite_scales
from cachequant.kv.pages import PAGE, PagePool, exact_rows
from cachequant.kv.session import Session

if TYPE_CHECKING:
    from cachequant.decoder.model import Model

VERSION = "2"  # raise it when the same metadata stand for other bytes
BOUND = ("fingerprint", "model", "scheme", "page_format", "calibration", "codec_seed", "kernel_set", "tokenizer")
FIELDS = {"format_version", *BOUND, "tokens", "stored", "sha256"}
SIGNATURE = "hmac_sha256"
TENSORS = {"ids": "I32", "pages": "U8", "codes": "U8"}


class SnapshotError(CachequantError, ValueError):
    """A saved session that is damaged, was changed, or belongs to another model."""


@dataclass(frozen=True)
class Snapshot:
    """A saved session whose contents have been checked, still in its file.

    metadata : of the file.
    ids : (T,) int32 token ids.
    pages : (P, bytes of a page) uint8, mapped, the exact pages of the first `stored` tokens.
    codes : (C, bytes of a page of codes) uint8, mapped, their other pages.
    """

    metadata: dict[str, str]
    ids: np.ndarray
    pages: np.ndarray
    codes: np.ndarray
    stored: int


def save(session: Session, path: str | Path, key: bytes | None = None) -> None:
    """Write a session to a file, which is there whole or not at all; see `Session.save`."""
    if session.model is None:
        raise InputError("a session that was made without a model cannot be saved: use Model.session()")
    require_stable(session.model.scheme, "a snapshot")
    check_key(key)
    pool, ids = session.model.pool, np.array(session.ids, np.int32)
    full, rows = divmod(session.stored, PAGE)
    held = list(session.pages[:full])
    if rows:  # what a longer branch left behind the last token is not this session's
        held.append(pool.copy(session.pages[-1], rows))
    pages, codes = (
        _contents(pool, [page for page in held if pool.is_coded(page) == coded], size)
        for coded, size in ((False, pool.page_bytes), (True, pool.coded_bytes))
    )
    if rows:
        pool.release(held[-1])
    metadata = identity(session.model) | {"tokens": str(len(ids)), "stored": str(session.stored)}
    metadata |= _digests(metadata, [ids, *pages, *codes], key)
    shapes = {"ids": ("I32", ids.shape), "pages": ("U8", pages.shape), "codes": ("U8", codes.shape)}
    with cachedir.atomic_file(Path(path).absolute()) as partial:
        writer = TensorWriter(partial, shapes, metadata, hashed=False)  # the digests are in the metadata
        writer.write("ids", ids)
        writer.write("pages", pages)
        writer.write("codes", codes)
        writer.close()


def _contents(pool: PagePool, pages: list[int], size: int) -> np.ndarray:
    out = np.empty((len(pages), size), np.uint8)
    for row, page in zip(out, pages, strict=True):
        pool.read(page, row)
    return out


def load(model: "Model", path: str | Path, key: bytes | None = None) -> Session:
    """The session of a file, every bit checked before a page is taken; see `Model.load_session`."""
    require_stable(model.scheme, "a snapshot")
    snapshot, pool = read(path, key), model.pool
    for name, expected in identity(model).items():
        found = snapshot.metadata[name]
        if found != expected:
            raise SnapshotError(f"{path}: {name} is {found!r}, this model's is {expected!r}")
    coded = [_is_coded(pool, i, snapshot.stored) for i in range(-(-snapshot.stored // PAGE))]
    for name, found, expected in (
        ("pages", snapshot.pages.shape, (coded.count(False), pool.page_bytes)),
        ("codes", snapshot.codes.shape, (coded.count(True), pool.coded_bytes)),
    ):
        if found != expected:
            raise SnapshotError(
                f"{path}: {name} of shape {found}, this model's {snapshot.stored} tokens have {expected}"
            )
    ids, config = snapshot.ids, model.config
    if len(ids) > config.context:
        raise SnapshotError(f"{path}: {len(ids)} tokens do not fit a context of {config.context}")
    bad = np.flatnonzero((ids < 0) | (ids >= config.vocab))
    if bad.size:
        raise SnapshotError(f"{path}: token id {ids[bad[0]]} at {bad[0]} is outside the vocabulary [0, {config.vocab})")
    for i, page in enumerate(snapshot.pages):
        rows = exact_rows(page, config.layers, config.kv_heads, config.head_dim)
        if not all(np.isfinite(r).all() for r in rows):
            raise SnapshotError(f"{path}: page {i} holds values that are not finite")
    if len(snapshot.codes):
        shape = config.layers, config.kv_heads, config.head_dim
        bad = np.flatnonzero(~finite_scales(snapshot.codes, pool.coding.format, *shape))
        if bad.size:
            raise SnapshotError(f"{path}: page of codes {bad[0]} holds scales or values that are not finite")
    session, pages = model.session(), []
    try:
        sources = {False: iter(snapshot.pages), True: iter(snapshot.codes)}
        for kind in coded:
            pages.append(pool.acquire(kind))
            pool.write(pages[-1], next(sources[kind]))
        session.share(ids.tolist(), pages, snapshot.stored)
    finally:
        for page in reversed(pages):
            pool.release(page)
    return session


def read(path: str | Path, key: bytes | None = None) -> Snapshot:
    """Metadata, ids and pages of a file, compared with its hash, and with its signature if there is a key.

    Raises
    ------
    SnapshotError : missing, truncated or changed; not signed though a key is given, signed though none is, or with
        another key; of another format version.
    """
    check_key(key)
    try:
        file = TensorFile(Path(path))
    except (AssetError, OSError, ValueError) as error:
        raise SnapshotError(str(error)) from error
    metadata = file.metadata
    version = metadata.get("format_version")
    if version != VERSION:
        raise SnapshotError(f"{path}: format version {version!r} of saved sessions; this version reads {VERSION!r}")
    signed = SIGNATURE in metadata
    if signed != (key is not None):
        raise SnapshotError(
            f"{path}: is signed, give its key" if signed else f"{path}: is not signed, but a key is given"
        )
    wrong = set(metadata) ^ (FIELDS | ({SIGNATURE} if signed else set()))
    if wrong:
        raise SnapshotError(f"{path}: metadata {sorted(wrong)[0]!r} is missing or not known")
    if {name: info.dtype for name, info in file.tensors.items()} != TENSORS:
        raise SnapshotError(f"{path}: tensors {sorted(file.tensors)}; a saved session has {TENSORS}")
    ids, pages, codes = (file.raw(name) for name in TENSORS)
    given = {name: value for name, value in metadata.items() if name not in ("sha256", SIGNATURE)}
    for name, digest in _digests(given, [ids, pages, codes], key).items():
        if not hmac.compare_digest(digest.encode(), metadata[name].encode()):
            raise SnapshotError(f"{path}: {name} does not fit the contents: damaged, changed, or another key")
    tokens, stored = (_count(path, metadata, name) for name in ("tokens", "stored"))
    needed = -(-stored // PAGE)
    if (
        ids.shape != (tokens,)
        or stored > tokens
        or pages.ndim != 2
        or codes.ndim != 2
        or len(pages) + len(codes) != needed
    ):
        raise SnapshotError(
            f"{path}: {tokens} tokens, {stored} of them stored in {needed} pages, but ids of shape {ids.shape} "
            f"and pages of shapes {pages.shape} and {codes.shape}"
        )
    return Snapshot(metadata, ids, pages, codes, stored)


def identity(model: "Model") -> dict[str, str]:
    """What a snapshot is bound to; `calibration` and `codec_seed` are empty where nothing is coded."""
    basis = model.pages.basis
    return {
        "format_version": VERSION,
        "fingerprint": model.fingerprint,
        "model": model.name,
        "scheme": model.scheme.name,
        "page_format": model.kv.name,
        "calibration": basis.tag if basis else "",
        "codec_seed": str(SEED) if basis else "",
        "kernel_set": model.kernel_set,
        "tokenizer": model.tokenizer.sha256 if model.tokenizer else "",
    }


def _is_coded(pool: PagePool, index: int, stored: int) -> bool:
    """Whether a page of a session with so many stored tokens is kept as codes."""
    return not pool.exact(index) and (index + 1) * PAGE <= stored


def check_key(key: bytes | None) -> None:
    """Raises InputError for a key that is not bytes, or is empty."""
    if key is not None and (not isinstance(key, bytes) or not key):
        raise InputError("the key has to be bytes, at least one")


def _digests(metadata: dict[str, str], arrays: list[np.ndarray], key: bytes | None) -> dict[str, str]:
    """sha256, and signature if there is a key, of metadata and arrays."""
    found = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode() + b"\n")
    for array in arrays:
        found.update(np.ascontiguousarray(array).data if array.size else b"")
    digests = {"sha256": found.hexdigest()}
    if key is not None:
        digests[SIGNATURE] = hmac.new(key, found.digest(), "sha256").hexdigest()
    return digests


def _count(path: str | Path, metadata: dict[str, str], name: str) -> int:
    text = metadata[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise SnapshotError(f"{path}: {name} is {text!r}, not a number of tokens")
    return int(text)
