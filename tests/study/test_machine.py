"""The roofs are measured and plausible."""

import json

import numpy as np
import pytest

from cachequant.errors import InputError
from cachequant.study import machine
from cachequant.study.reading import ReadWork, read


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_read_sums_every_value_it_claims_to_read(rng, threads):
    x = rng.integers(-1000, 1000, 8 * threads * 125)
    sums = np.zeros(threads, np.int64)
    read(x, sums)
    assert sums.sum() == x.sum()


def test_reader_reports_a_plausible_bandwidth():
    work = ReadWork(threads=1, size=1 << 24)
    assert work.facts() == {"bytes": 1 << 24}
    assert 0.01 < work.read()["gb_s"] < 2000


def test_measure(monkeypatch):
    monkeypatch.setattr(machine, "SHAPE", (64, 64))
    monkeypatch.setattr(machine, "ROWS", 16)
    monkeypatch.setattr(machine, "BUFFER_BYTES", 0)
    monkeypatch.setattr(machine, "PEAKS", ("fp32", "torch-fp32"))
    monkeypatch.setattr("cachequant.kernels.cpu.last_level_bytes", lambda: 1 << 20)
    seen = []
    found = machine.measure(threads=2, repeats=2, progress=lambda *a: seen.append(a))
    json.dumps(found, allow_nan=False)
    assert list(found["read_gb_s"]) == ["1", "2"] and found["read_buffer_bytes"] == 4 << 20
    assert set(found["gemm_gops"]) == {"fp32", "torch-fp32"} and found["missing"] == {}
    assert all(len(cell["values"]) == 2 for cell in found["gemm_gops"].values())
    assert found["register_gops"].keys() == {"fp32", "int8"}
    assert all(min(cell["values"]) > 0.01 for cell in found["register_gops"].values())
    assert seen[-1][:2] == (2, 2)


def test_bad_requests_are_refused():
    for how in ({"threads": 0}, {"repeats": 0}):
        with pytest.raises(InputError, match="at least 1"):
            machine.measure(**how)


def test_thread_counts_double():
    assert [machine.counts(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
