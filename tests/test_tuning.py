"""What `auto` stands for: the rule on made-up ratios, what is stored, and for whom it counts."""

import json
from pathlib import Path

import pytest

from cachequant import schemes, tuning
from cachequant.assets import cachedir
from cachequant.kernels import cpu, selfcheck, simd

REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "05_quality_grid.json"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path))
    return tmp_path


def ratio(median, low, high):
    return {"median": median, "low": low, "high": high}


CASES = {
    "clearly faster": ({"w8a12": ratio(1.2, 1.1, 1.3)}, "w8a12"),
    "the fastest of two": ({"w8": ratio(1.1, 1.05, 1.2), "w8a12": ratio(1.2, 1.1, 1.3)}, "w8a12"),
    "within the interval": ({"w8a12": ratio(1.2, 0.99, 1.4)}, "int8-hadamard"),
    "a sure gain before a larger unsure one": ({"w8": ratio(1.1, 1.05, 1.2), "w8a12": ratio(1.5, 0.9, 2.0)}, "w8"),
    "slower": ({"w8a12": ratio(0.8, 0.7, 0.9)}, "int8-hadamard"),
    "equal": ({"w8a12": ratio(1.0, 1.0, 1.0)}, "int8-hadamard"),
    "alone": ({}, "int8-hadamard"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case):
    ratios, expected = CASES[case]
    scheme, why = tuning.choose(ratios, "int8-hadamard")
    assert scheme == expected
    assert ("beyond the interval" in why) == (expected == "int8-hadamard")


def test_candidates_are_those_that_the_published_run_lets_pass():
    published = json.loads(REFERENCE.read_text())["data"]["schemes"]
    near = {
        name
        for name, found in published.items()
        if name in schemes.PRESETS and "delta_percent" in found and not schemes.get(name).calibrated
        if found["delta_percent"]["low"] <= schemes.TOLERANCE
    }
    assert set(schemes.FAITHFUL) == near
    for kernel_set in simd.SETS.values():
        assert ("w8a12" if kernel_set.wide else "int8-hadamard") in schemes.FAITHFUL


@pytest.mark.parametrize(("wide", "name"), [(True, "w8a12"), (False, "int8-hadamard")])
def test_the_table_goes_by_what_the_cpu_multiplies(wide, name, monkeypatch):
    monkeypatch.setattr(selfcheck, "active", lambda: next(s for s in simd.SETS.values() if s.wide == wide))
    assert schemes.get("auto") == schemes.get(name)
    assert schemes.get("auto+head").name == f"{name}+head"
    assert (tuning.current().source, "fixed table" in tuning.current().why) == ("table", True)


def other():
    """A candidate that the table does not take here."""
    return next(s for s in schemes.FAITHFUL if s != tuning.by_table().scheme)


def test_a_stored_choice_is_what_auto_means_until_it_is_forgotten():
    path = tuning.store(other(), "because", "2026-01-02", {})
    assert schemes.get("auto+head") == schemes.get(other(), "int8-block32")
    found = tuning.current()
    assert (found.scheme, found.source) == (other(), "tuned")
    assert "because" in found.why and "2026-01-02" in found.why
    assert [(e.kind, e.path) for e in cachedir.entries()] == [("tuned", path)]
    assert tuning.forget()
    assert not tuning.forget()
    assert tuning.current() == tuning.by_table()


CHANGES = {
    "cpu": lambda patch: patch.setattr(cpu, "model", lambda: "another CPU"),
    "features": lambda patch: patch.setattr(cpu, "features", lambda: frozenset({"avx2"})),
    "architecture": lambda patch: patch.setattr(cpu, "architecture", lambda: "z80"),
    "version": lambda patch: patch.setattr(tuning.cachequant, "__version__", "99"),
    "kernels": lambda patch: patch.setattr(selfcheck, "active", lambda: simd.SETS["neon-dot"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_counts_for_this_machine_and_version_only(change, monkeypatch):
    tuning.store(other(), "because", "2026-01-02", {})
    with monkeypatch.context() as patch:
        CHANGES[change](patch)
        assert tuning.current().source == "table"
    assert tuning.current().source == "tuned"


DAMAGE = {
    "not JSON": lambda note: "{",
    "a list": lambda note: "[]",
    "no scheme": lambda note: json.dumps({k: v for k, v in note.items() if k != "scheme"}),
    "a scheme of low quality": lambda note: json.dumps(note | {"scheme": "int8-tensor"}),
    "an unknown scheme": lambda note: json.dumps(note | {"scheme": ["int9"]}),
    "another machine": lambda note: json.dumps(note | {"machine": note["machine"] | {"cpu": "another CPU"}}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_note_is_passed_over(damage):
    path = tuning.store(other(), "because", "2026-01-02", {})
    path.write_text(DAMAGE[damage](json.loads(path.read_text())))
    with pytest.warns(UserWarning, match="damaged and not used"):
        assert tuning.current() == tuning.by_table()
    tuning.store(other(), "because", "2026-01-02", {})
    assert tuning.current().scheme == other()
