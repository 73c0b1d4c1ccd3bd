"""Errors of the formats against theory, and the numbers that the chapter retells."""

import numpy as np
import pytest

from cachequant import schemes
from cachequant.schemes import EXACT, POW2, Block, Quantizer, Row, ScaleRule, Tensor
from cachequant.study import formats

TOLERANCE_DB = 0.3


@pytest.fixture
def normal(rng):
    return rng.standard_normal((256, 768), np.float32)


def test_uniform_numbers_reach_the_textbook_ratio(rng):
    x = rng.uniform(-1, 1, (64, 4096)).astype(np.float32)
    measured, predicted = formats.snr_db(x, Quantizer(Tensor(), EXACT))
    assert measured == pytest.approx(20 * np.log10(2 * 127), abs=0.05)  # range over step
    assert predicted == pytest.approx(measured, abs=0.05)


@pytest.mark.parametrize("quantizer", [s.weight for s in schemes.grid().values()], ids=lambda q: q.name)
def test_scales_alone_predict_the_error_of_gaussian_numbers(normal, quantizer):
    measured, predicted = formats.snr_db(normal, quantizer)
    # an exact scale makes the largest value of a group free of error: 1 of 16 in the smallest groups
    assert abs(measured - predicted) < TOLERANCE_DB


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_cost_of_a_coarse_scale_is_as_expected(rng, steps):
    spread = np.float32(2.0) ** rng.uniform(-8, 8, (512, 1)).astype(np.float32)  # largest values even in log2
    x = rng.standard_normal((512, 128), np.float32) * spread

    def error(rule):
        predicted = [formats.snr_db(row[None], Quantizer(Row(), rule))[1] for row in x]
        return np.mean([10 ** (-p / 10) for p in predicted])

    lost = formats.decibel(error(ScaleRule(steps)) / error(EXACT))
    assert lost == pytest.approx(formats.rule_cost_db(steps, 128), abs=0.2)


def test_cost_of_a_power_of_two_in_closed_form():
    assert formats.rule_cost_db(1, 10**9) == pytest.approx(10 * np.log10(3 / np.log(4)))
    assert formats.rule_cost_db(10**6) == pytest.approx(10 * np.log10(32 / 31), abs=1e-5)
    assert formats.rule_cost_db(8) < formats.rule_cost_db(4) < formats.rule_cost_db(2) < formats.rule_cost_db(1)


def test_worked_example_of_the_book():
    found = formats.worked_example([1.5, -0.7, 0.2, -1.9], Quantizer(Row(), POW2))
    assert found["scale"] == pytest.approx(2)
    assert found["codes"] == [95, -44, 13, -121]
    assert found["back"][0] == pytest.approx(95 * 2 / 127)
    assert found["largest"] == pytest.approx(1.9)


def test_sweep_weighs_bits_by_size_and_keeps_every_matrix(rng):
    matrices = {"wide": rng.standard_normal((4, 64), np.float32), "narrow": rng.standard_normal((4, 16), np.float32)}
    row = Quantizer(Row(), EXACT)
    found = formats.sweep(matrices, {row.name: row})
    assert found["matrices"] == ["wide", "narrow"]
    entry = found["formats"]["row-exact"]
    assert entry["bits"] == pytest.approx(8 + 32 * 8 / (4 * 64 + 4 * 16))
    assert entry["snr_db"] == [formats.snr_db(x, row)[0] for x in matrices.values()]


def test_all_formats_are_the_grid_and_half_precision_scales():
    found = formats.all_formats()
    assert len(found) == 35 + 7
    assert found["block32-exact-fp16"].bits_per_value(1, 32) == 8.5
    assert {formats.rule_name(q) for q in found.values()} == {"exact", "exact-fp16", "pow2", "snap2", "snap4", "snap8"}


def test_outliers_of_a_gaussian_and_of_one_loud_channel(normal):
    assert formats.outliers(normal)["kurtosis"] == pytest.approx(3, abs=0.1)
    loud = normal.copy()
    loud[:, 17] *= 100
    found = formats.outliers(loud)
    assert found["channel"] == 17
    assert found["channel_share"] == pytest.approx(1e4 / (1e4 + 767), abs=0.02)
    assert found["channel_maxima"].shape == (768,)
    assert found["varying"] == pytest.approx(1, abs=0.02)
    assert found["crest"] > 4 * formats.outliers(normal)["crest"]
    assert found["kurtosis"] > 100


def test_blocks_contain_an_outlier_that_rows_do_not(normal):
    loud = normal.copy()
    loud[:, 17] *= 1000
    quiet = np.delete(np.arange(768), np.arange(17 // 32 * 32, 17 // 32 * 32 + 32))

    def error(quantizer):
        back = formats.dequantize(formats.quantize(loud, quantizer))
        return np.square(loud - back)[:, quiet].mean()

    assert error(Quantizer(Block(32), POW2)) < 1e-3 * error(Quantizer(Row(), EXACT))


def test_numbers_that_were_codes_are_recognized(rng):
    codes = np.float32(0.25) * rng.integers(-127, 128, (8, 64)).astype(np.float32)
    codes[:, [0, 32]] = 0.25 * 127  # Q8_0's scale is the largest value over 127
    assert formats.reproduced(codes, Quantizer(Block(32), EXACT, half=True)) == 1
    assert formats.reproduced(codes + rng.normal(0, 0.1, codes.shape), Quantizer(Block(32), EXACT)) < 0.2
    four_bits = rng.integers(0, 16, (8, 64)).astype(np.float32)
    assert formats.distinct_in_blocks(four_bits)["most"] <= 16
    assert formats.distinct_in_blocks(rng.standard_normal((8, 70), np.float32)) == {"median": 32, "most": 32}


def test_rule_loss_averages_over_matrices():
    sweep = {"block32-exact": {"snr_db": [40.0, 44.0]}, "block32-pow2": {"snr_db": [37.0, 40.0]}}
    assert formats.rule_loss(sweep, "pow2") == pytest.approx(3.5)


def test_a_loud_row_does_not_hide_what_one_scale_does_to_the_others(normal):
    loud = normal.copy()
    loud[0] *= 1e4
    assert formats.snr_db(loud, Quantizer(Tensor(), EXACT))[0] < 1
    assert formats.snr_db(loud, Quantizer(Row(), EXACT))[0] > 40
    found = formats.outliers(loud + np.float32(3))
    assert found["loudest_row"] == 0
    assert found["loudest_over_median"] > 1e3


def test_unchanged_and_zero_rows_keep_the_ratio_finite():
    x = np.array([[1, -1], [0, 0]], np.float32)
    assert formats.snr_db(x, Quantizer(Row(), EXACT))[0] == formats.CEILING_DB


def test_a_constant_column_does_not_vary(normal):
    steady = normal.copy()
    steady[:, 5] = 1000
    assert formats.outliers(steady)["varying"] < 1e-2
    assert formats.outliers(steady)["channel"] == 5
