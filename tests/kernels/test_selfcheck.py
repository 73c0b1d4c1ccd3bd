import pytest

from cachequant.errors import CachequantError
from cachequant.kernels import native, selfcheck, simd

SETS = [s for s in simd.SETS.values() if s.runs_here]


@pytest.fixture(autouse=True)
def forget():
    selfcheck.first_sound.cache_clear()
    yield
    selfcheck.first_sound.cache_clear()


@pytest.mark.parametrize("kernel_set", SETS, ids=lambda s: s.name)
def test_kernels_are_sound(kernel_set):
    assert selfcheck.check(kernel_set) == []


def test_the_best_set_is_chosen():
    assert selfcheck.active() == SETS[0]


def test_a_broken_kernel_is_found_and_the_next_set_taken(monkeypatch):
    """Exchange the kernels of codes and floats of the best set: its int8 products come out wrong."""
    broken = native.table(SETS[0]).copy()
    broken[native.CHAIN_CODES] = broken[native.CHAIN_FLOATS]
    table = native.table
    monkeypatch.setattr(native, "table", lambda s: broken if s == SETS[0] else table(s))
    monkeypatch.setattr(simd, "available", lambda wide: SETS)
    with pytest.warns(UserWarning, match=f"{SETS[0].name}.*row-exact"):
        assert selfcheck.active() == SETS[1]
    selfcheck.first_sound.cache_clear()
    monkeypatch.setattr(simd, "available", lambda wide: SETS[:1])
    with pytest.warns(UserWarning), pytest.raises(CachequantError, match="no kernel set"):
        selfcheck.active()


def test_inputs_of_more_than_8_bits_have_a_set_of_their_own(monkeypatch):
    assert selfcheck.active(wide=True) == next(s for s in SETS if s.wide)
    if narrow := [s.name for s in SETS if not s.wide]:
        monkeypatch.setenv("CACHEQUANT_KERNELS", narrow[0])
        assert selfcheck.active(wide=True).wide
    monkeypatch.setenv("CACHEQUANT_KERNELS", "portable")
    assert selfcheck.active(wide=True).name == "portable"


def test_the_environment_restricts_the_sets(monkeypatch):
    monkeypatch.setenv("CACHEQUANT_KERNELS", "portable")
    assert selfcheck.active().name == "portable"
    monkeypatch.setenv("CACHEQUANT_KERNELS", "mmx")
    with pytest.raises(ValueError, match="'mmx'.*portable"):
        simd.available()
