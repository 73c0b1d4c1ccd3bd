"""What tests convert stays out of the user's cache folder; embedded assets and compiled kernels are shared with it."""

from pathlib import Path

import platformdirs

import cache_of_tests
from cachequant import kernels
from cachequant.assets import cachedir, models
from cachequant.decoder import random
from cachequant.decoder.config import DecoderConfig
from helpers import TINY


def test_the_run_has_a_cache_of_its_own():
    assert cachedir.root().name.startswith("cachequant-tests-")
    assert Path(platformdirs.user_cache_dir("cachequant")) not in (cachedir.root(), *cachedir.root().parents)
    assert kernels.cache_folder().parent.is_symlink()


def test_what_is_there_is_seen_and_what_is_added_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(random, "GPT2_SMALL", DecoderConfig.from_hf(TINY["gpt2"]))
    user = tmp_path / "user"
    monkeypatch.setenv("CACHEQUANT_CACHE", str(user))
    (cachedir.folder("models") / "embedded").mkdir()
    (user / "models" / "embedded" / "file").write_bytes(b"x")
    (user / "models" / ".partial-other").mkdir()
    with cache_of_tests.make() as folder:
        monkeypatch.setenv("CACHEQUANT_CACHE", folder)
        assert (cachedir.root() / "models" / "embedded" / "file").read_bytes() == b"x"
        models.resolve("gpt2-random")
        (cachedir.folder("texts") / "a.txt").touch()
        assert len(list((Path(folder) / "models").iterdir())) == 2
    kept = {str(path.relative_to(user)) for path in user.rglob("*") if path.is_file()}
    assert kept == {"models/embedded/file", "texts/a.txt"}
