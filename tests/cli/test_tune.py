"""`cachequant tune` on a tiny model with made-up timings: what it stores, and what the other commands say then."""

import pytest

from cachequant import schemes, tuning
from cachequant.study import scheme_speed


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path))


@pytest.fixture
def another(monkeypatch):
    """A scheme that is twice as fast as all others."""
    chosen = next(s for s in schemes.FAITHFUL if s != tuning.by_table().scheme)

    def interleaved(engines, ids, new, repeats, progress):
        return {
            name: {metric: [200.0 if name == chosen else 100.0] * repeats for metric in scheme_speed.METRICS}
            for name in engines
        }

    monkeypatch.setattr(scheme_speed, "interleaved", interleaved)
    return chosen


def test_the_choice_is_stored_shown_and_forgotten(cli, cli_json, tiny, another):
    table = tuning.by_table().scheme
    assert cli_json("doctor")[1]["auto"]["source"] == "table"
    code, found = cli_json("tune", "--model", tiny, "--repeats", 5)
    assert (code, found["auto"], found["source"]) == (0, another, "tuned")
    assert found["choice"]["table"] == table
    assert {"arms", "ratios", "missing", "provenance", "kernels", "file"} <= found.keys()
    assert found["ratios"][f"{another}/{table}"]["speed"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    told = cli_json("doctor")[1]["auto"]
    assert (told["scheme"], told["source"]) == (another, "tuned")
    (line,) = [line for line in cli("doctor")[1].splitlines() if line.startswith("scheme auto ")]
    assert f"{another}, measured by `cachequant tune`" in line
    code, listed = cli_json("cache", "ls")
    assert [e["kind"] for e in listed["entries"] if e["kind"] == "tuned"] == ["tuned"]
    code, found = cli_json("tune", "--reset")
    assert (code, found["auto"], found["source"], found["removed"]) == (0, table, "table", True)
    assert not cli_json("tune", "--reset")[1]["removed"]
    assert cli_json("doctor")[1]["auto"]["scheme"] == table


def test_people_read_a_table_and_a_sentence(cli, tiny, another):
    code, out, _ = cli("tune", "--model", tiny, "--repeats", 5)
    assert code == 0
    assert f"auto is now {another}: 2.00 [2.00, 2.00] times the speed of {tuning.by_table().scheme}" in out
    for name in schemes.FAITHFUL:
        assert name in out
    code, out, _ = cli("tune", "--reset")
    assert "the stored choice is forgotten" in out
    assert f"auto is {tuning.by_table().scheme}: fixed table" in out
    assert "nothing was stored" in cli("tune", "--reset")[1]


def test_generate_takes_the_stored_choice(cli_json, tiny, another):
    cli_json("tune", "--model", tiny, "--repeats", 5)
    code, found = cli_json("generate", "--ids", "1,2,3", "--model", tiny, "--scheme", "auto", "--max-new-tokens", 2)
    assert code == 0
    assert found["scheme"] == another


def test_a_choice_that_cannot_be_stored_is_an_error_and_checkpoints_are_refused(cli, tiny, another, tmp_path):
    code, _, err = cli("quantize", tiny, tmp_path / "coded")
    assert code == 0, err
    code, out, err = cli("tune", "--model", tmp_path / "coded", "--repeats", 5)
    assert (code, out) == (2, "")
    assert "quantized as 'int8'" in err
