"""`session`: info, verify, replay and compare on files of a tiny model."""

import pytest

import cachequant as cq
from cachequant.assets.tensorfile import TensorFile
from helpers import checkpoint


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sessions")
    with cq.load(tiny).session() as session:
        session.generate("The fox", 30)
        session.save(folder / "a")
        session.save(folder / "signed", b"secret\n")
        with session.fork(20) as branch:
            branch.generate("!", 5)
            branch.save(folder / "b")
    (folder / "key").write_bytes(b"secret\n")
    return folder


def test_info(cli, cli_json, saved):
    code, found = cli_json("session", "info", saved / "a")
    assert (code, found["tokens"], found["stored"], found["pages"], found["signed"]) == (0, 37, 36, 2, False)
    assert found["bytes"] == (saved / "a").stat().st_size
    assert "kernel_set" in cli("session", "info", saved / "a")[1]
    assert cli_json("session", "info", saved / "signed", "--key-file", saved / "key")[1]["signed"]
    code, _, err = cli("session", "info", saved / "signed")
    assert code == 2
    assert "is signed" in err


def test_verify(cli_json, cli, saved, tiny):
    code, found = cli_json("session", "verify", saved / "a", "--model", tiny)
    assert (code, found["ok"], found["differing_pages"]) == (0, True, [])
    code, _, err = cli("session", "verify", saved / "a", "--model", tiny, "--scheme", "int8")
    assert code == 2
    assert "scheme is 'fp32', but 'int8' is asked for" in err


def test_sessions_over_codes(cli_json, cli, tmp_path):
    folder = checkpoint("llama-coded", str(tmp_path))
    with cq.load(folder, "int8", kv="k4v4", calibration="none").session() as session:
        session.generate(list(range(70)), 5)
        session.save(tmp_path / "s")
    assert cli_json("session", "info", tmp_path / "s")[1]["pages"] == 3
    of_model = ("session", "verify", tmp_path / "s", "--model", folder)
    for given in ((), ("--scheme", "int8", "--kv", "k4v4", "--calibration", "none")):
        code, found = cli_json(*of_model, *given)
        assert (code, found["ok"]) == (0, True)
    code, found = cli_json("session", "replay", tmp_path / "s", "--model", folder, "--from-token", 70)
    assert (code, found["difference"]) == (0, None)
    for given in (("--kv", "k4v3"), ("--scheme", "fp32")):
        code, _, err = cli(*of_model, *given)
        assert (code, "is asked for" in err) == (2, True)


def test_a_model_is_found_by_the_name_in_the_file(cli, cli_json, tmp_path, monkeypatch):
    folder = checkpoint("llama-coded", str(tmp_path))
    with cq.load(folder).session() as session:
        session.extend(range(40), "none")
        session.save(tmp_path / "s")
    code, _, err = cli("session", "verify", tmp_path / "s")
    assert (code, "belongs to model 'llama-coded', which is not found by its name: give --model" in err) == (2, True)
    monkeypatch.chdir(tmp_path)
    code, found = cli_json("session", "verify", "s")
    assert (code, found["ok"]) == (0, True)


def test_verify_finds_pages_of_other_tokens(cli_json, saved, tiny, tmp_path):
    model = cq.load(tiny)
    with model.session() as session:
        session.extend([65] * 40)
        session.ids[5] = 66
        session.save(tmp_path / "s")
    code, found = cli_json("session", "verify", tmp_path / "s", "--model", tiny)
    assert (code, found["ok"], found["differing_pages"]) == (1, False, [0, 1])


def test_replay(cli_json, saved, tiny):
    code, found = cli_json("session", "replay", saved / "a", "--model", tiny, "--from-token", 7)
    assert (code, found["difference"]) == (0, None)
    assert found["ids"] == TensorFile(saved / "a").raw("ids")[7:].tolist()
    code, found = cli_json("session", "replay", saved / "b", "--model", tiny, "--from-token", 7)
    assert (code, found["difference"]) == (1, 20)


def test_compare(cli, cli_json, saved):
    code, found = cli_json("session", "compare", saved / "a", saved / "b")
    assert (code, found["shared tokens"], found["tokens"]) == (0, ["20", "20"], ["37", "26"])
    for form, word in (("csv", "tokens,37,26"), ("md", "| tokens | 37 | 26 |"), ("tex", "tokens & 37 & 26 \\\\")):
        code, out, _ = cli("session", "compare", saved / "a", saved / "b", "--format", form)
        assert code == 0
        assert word in out
    code, out, _ = cli("session", "compare", saved / "a")
    assert (code, "| tokens | 37 |\n" in out, "shared tokens" in out) == (0, True, False)


def test_missing_files(cli, saved, tmp_path):
    for arguments in (("info", tmp_path / "none"), ("info", saved / "a", "--key-file", tmp_path / "none")):
        code, _, err = cli("session", *arguments)
        assert code == 2
        assert "none" in err
