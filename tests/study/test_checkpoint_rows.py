"""Rows and figure of the chapter on checkpoints."""

from cachequant.study import checkpoint_rows
from cachequant.study.figures import checkpoints as figures

SPEED = {"median": 2.0, "low": 1.0, "high": 3.0}


def facts(file, above):
    return {"file_bytes": file, "above_bytes": above, "peak_rss_bytes": above + 5e6}


FOUND = {
    "facts": {"fp32": facts(100e6, 110e6), "int8": facts(25e6, 33e6)},
    "arms": {name: {"decode_tok_s": SPEED, "uncached_tok_s": SPEED} for name in ("fp32", "int8")},
    "ratios": {"int8/fp32": {"decode_tok_s": SPEED, "uncached_tok_s": SPEED}},
}


def test_shares_are_of_float32():
    plain, coded = checkpoint_rows.of({"m": FOUND})
    assert (plain["file_share"], plain["above_share"], plain["decode_times"]) == (100, 100, None)
    assert (coded["file"], coded["file_share"], coded["above_share"]) == (25, 25, 30)
    assert (coded["resident"], coded["excess"], coded["uncached_times"]) == (38, 33 / 25, SPEED)
    assert coded["model"] == "m"


def test_without_float32_there_are_no_shares():
    alone = {"facts": {"int8": FOUND["facts"]["int8"]}, "arms": {"int8": FOUND["arms"]["int8"]}, "ratios": {}}
    (row,) = checkpoint_rows.of({"m": alone})
    assert (row["file_share"], row["decode_times"]) == (None, None)


def test_the_figure_writes_both_shares():
    ax = figures.shares(checkpoint_rows.of({"m": FOUND}))
    assert {t.get_text() for t in ax.texts} == {"100.0, 100.0", "25.0, 30.0"}
    assert [t.get_text() for t in ax.get_yticklabels()] == ["int8", "fp32"][::-1]
