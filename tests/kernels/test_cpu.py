import pytest

from cachequant import kernels
from cachequant.kernels import cpu


def test_cores_are_counted_within_the_affinity():
    assert 1 <= cpu.physical_cores() <= len(cpu.cpus())


def test_names_and_sizes_are_plausible():
    assert cpu.model()
    assert cpu.architecture()
    assert cpu.last_level_bytes() >= 1 << 18
    assert all(size >= 1 << 10 for size in cpu.cache_bytes().values())


def test_a_container_quota_limits_the_cores(monkeypatch):
    read = cpu._read
    monkeypatch.setattr(cpu, "_read", lambda path: "50000 100000" if path.name == "cpu.max" else read(path))
    assert cpu.physical_cores() == 1


def test_compiled_kernels_live_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path))
    assert kernels.cache_folder().parent == tmp_path / "kernels"


@pytest.mark.parametrize("asked, got", [(1, 1), (0, 1), (10**6, None), (None, cpu.physical_cores())])
def test_threads_are_clamped(asked, got):
    before = kernels.get_threads()
    try:
        used = kernels.set_threads(asked)
        assert used == kernels.get_threads() >= 1
        assert got is None or used == got
    finally:
        kernels.set_threads(before)


def test_set_threads_leaves_torch_alone():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    kernels.set_threads(1)
    try:
        assert torch.get_num_threads() == before
    finally:
        kernels.set_threads()
