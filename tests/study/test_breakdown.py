"""Where the time of a pass goes."""

import pytest

from cachequant.errors import InputError
from cachequant.kernels import gemm, region
from cachequant.study import breakdown


def test_every_kernel_has_its_time():
    before = gemm.matmul, region.run
    found = breakdown.profile("gpt2-random", "int8", prompt=5, new=2, repeats=1)
    assert (gemm.matmul, region.run) == before
    for phase in ("prefill", "decode"):
        part = found[phase]
        total = part["stages_seconds"]["median"]
        assert part["stages"].keys() == {
            "attention", "keys and values into pages", "LayerNorm", "GELU", "matrix products",
        }  # fmt: skip
        assert 0 < sum(s["median"] for s in part["stages"].values()) <= 1.5 * total
        assert 0 < part["python_seconds"]["median"] < part["seconds"]["median"]
    assert found["decode"]["context"] == 5
    empty, python = (cell["median"] for cell in (found["region_seconds"], found["decode"]["python_seconds"]))
    assert 0 < empty < 0.1
    assert found["decode"]["dispatch_seconds"]["median"] == pytest.approx(python + 2 * empty)


@pytest.mark.parametrize("lengths", [(0, 1, 1), (5, 0, 1), (5, 1, 0), (1023, 2, 1)])
def test_lengths_that_do_not_fit_are_refused(lengths):
    with pytest.raises(InputError, match=r"(prompt|new|repeats) 0 has to be at least 1|1023 \+ 2 tokens"):
        breakdown.profile("gpt2-random", "int8", *lengths)
