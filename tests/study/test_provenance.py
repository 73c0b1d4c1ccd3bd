import getpass
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from cachequant.errors import ResultError
from cachequant.study import provenance


def test_names_the_machine_but_not_its_owner():
    found = provenance.collect()
    text = json.dumps(found)
    assert found["cpu"]["logical"] >= 1 and found["cpu"]["model"]
    assert found["ram_bytes"] > 2**28
    assert found["versions"]["python"] == platform.python_version()
    assert {"cachequant", "numpy", "numba"} <= found["versions"].keys()
    for secret in {platform.node(), str(Path.home()), str(Path.cwd())} | {u for u in [getpass.getuser()] if len(u) > 3}:
        assert len(secret) < 3 or secret not in text


def test_threads_of_imported_engines_only():
    code = (
        "from cachequant.study import provenance; import numba; numba.set_num_threads(1); print(provenance.threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'numba': 1}"


def test_identity_of_objects_and_mappings():
    class Model:
        name, fingerprint, random = "gpt2-random", "ab", True

    assert provenance.identity(Model(), "model") == {"name": "gpt2-random", "sha256": "ab", "random": True}
    assert provenance.identity({"name": "t", "sha256": "cd"}, "text") == {"name": "t", "sha256": "cd"}


@pytest.mark.parametrize("thing", [{"name": "t"}, {"sha256": "x"}, {"name": 3, "sha256": "x"}, "t"])
def test_a_model_or_text_without_a_hash_is_refused(thing):
    with pytest.raises(ResultError, match="name and sha256"):
        provenance.collect(texts=[thing])


def git(folder, *args):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True)


def test_commit_and_changes(tmp_path):
    assert provenance.commit(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    head, dirty = provenance.commit(tmp_path)
    assert len(head) == 40 and dirty is False
    (tmp_path / "results.json").write_text("{}")
    assert provenance.commit(tmp_path) == (head, False), "results do not change what computes"
    (tmp_path / "src" / "b.py").write_text("b = 1\n")
    assert provenance.commit(tmp_path) == (head, True)
