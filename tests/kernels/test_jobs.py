"""How work is cut: every panel of every part of the rows belongs to exactly one job, in equal shares."""

import numpy as np
import pytest

from cachequant.kernels import jobs
from cachequant.kernels.simd import WIDTH


@pytest.mark.parametrize("m", [1, 12, 13, 270, 4000])
@pytest.mark.parametrize("n", [1, 16, 17, 576, 960, 3072, 49152])
@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
def test_jobs_cover_every_panel_of_every_part_once(m, n, threads):
    work = height, cuts, count = jobs.plan(m, n, 12, 4 * 144, threads)
    parts, panels = -(-m // height), -(-n // WIDTH)
    assert height % 12 == 0
    assert count == parts * cuts
    seen, shares = np.zeros((parts, panels), int), []
    for job in range(count):
        first, end = jobs.panels_of(job, m, n, threads, work)
        seen[job % parts, first:end] += 1
        shares.append(end - first)
    assert np.all(seen == 1)
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


def test_threads_that_take_turns_go_through_neighbours():
    work = jobs.plan(1, 64 * WIDTH, 12, 4 * 144, 2)
    ranges = [jobs.panels_of(job, 1, 64 * WIDTH, 2, work) for job in range(work[2])]
    for own in (ranges[0::2], ranges[1::2]):
        assert all(before[1] == after[0] for before, after in zip(own, own[1:], strict=False))
