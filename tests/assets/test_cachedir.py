import os
import subprocess
import sys

import pytest

from cachequant.assets import cachedir
from cachequant.errors import InputError


def test_the_environment_variable_names_the_folder(cache):
    assert cachedir.root() == cache
    assert not cache.exists()
    assert cachedir.entries() == []


def test_entries_and_clear_see_known_kinds_only(cache):
    (cachedir.folder("texts") / "a.txt").write_bytes(b"12345")
    inner = cachedir.folder("models") / "m-v1"
    inner.mkdir()
    (inner / "w").write_bytes(b"123")
    (cache / "private").mkdir()
    (cache / "private" / "keep.txt").write_text("mine")
    assert [(e.kind, e.name, e.bytes) for e in cachedir.entries()] == [("models", "m-v1", 3), ("texts", "a.txt", 5)]
    assert [e.name for e in cachedir.clear(["texts"])] == ["a.txt"]
    assert [e.name for e in cachedir.clear()] == ["m-v1"]
    assert (cache / "private" / "keep.txt").read_text() == "mine"


def test_converted_models_are_listed_by_name(cache):
    folder = cachedir.folder("models") / "0123456789abcdef-v1"
    folder.mkdir()
    (folder / "source.json").write_text('{"name": "mine"}')
    assert [entry.name for entry in cachedir.entries()] == ["mine (0123456789ab)"]


def test_clear_refuses_unknown_kinds(cache):
    with pytest.raises(InputError, match="'weights'.*allowed.*models"):
        cachedir.clear(["weights"])


def test_clear_does_not_follow_links_out_of_the_cache(cache, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep.txt").write_text("mine")
    (cachedir.folder("models") / "link").symlink_to(outside)
    cachedir.clear()
    assert (outside / "keep.txt").exists()


def test_a_failed_write_leaves_the_earlier_file(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(RuntimeError), cachedir.atomic_file(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_folder_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), cachedir.atomic_folder(tmp_path / "folder") as partial:
        (partial / "half").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_folder_that_came_first_stays(tmp_path):
    target = tmp_path / "folder"
    with cachedir.atomic_folder(target) as second:
        (second / "who").write_text("second")
        with cachedir.atomic_folder(target) as first:
            (first / "who").write_text("first")
    assert (target / "who").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


CONVERT = """
import sys
from cachequant.assets import models, store
from cachequant.decoder import random
import dataclasses
random.GPT2_SMALL = dataclasses.replace(random.GPT2_SMALL, vocab=300, width=48, layers=2, heads=4, kv_heads=4,
                                        head_dim=12, ffn=96, eos_ids=(), bos_id=None)
asset = models.resolve("gpt2-random")
print(float(asset.weights["embed.weight"][7, 3]), asset.sha256)
"""


def test_processes_may_convert_the_same_model_at_once(cache):
    running = [subprocess.Popen([sys.executable, "-c", CONVERT], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(outputs) == 1
    assert [entry.kind for entry in cachedir.entries()] == ["models"]


def test_trimming_removes_what_was_used_longest_ago(cache, tmp_path):
    place = cachedir.folder("packed")
    for age, name in enumerate(("new", "middle", "old")):
        (place / name).mkdir()
        (place / name / "w").write_bytes(b"x" * 100)
        os.utime(place / name, (1e9 - age, 1e9 - age))
    (place / ".partial-of-another-process").mkdir()
    (place / ".partial-of-another-process" / "w").write_bytes(b"x" * 1000)
    cachedir.trim("packed", 300)
    assert len(cachedir.entries()) == 4
    cachedir.trim("packed", 250)
    assert {e.name for e in cachedir.entries()} == {"new", "middle", ".partial-of-another-process"}
    cachedir.trim("packed", 0)
    assert [e.name for e in cachedir.entries()] == [".partial-of-another-process"]


def test_a_removed_folder_leaves_nothing_and_may_be_gone_already(cache):
    folder = cachedir.folder("packed") / "one"
    folder.mkdir()
    (folder / "w").write_bytes(b"x")
    cachedir.remove(folder)
    cachedir.remove(folder)
    assert cachedir.entries() == []
