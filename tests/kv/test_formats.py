"""Names of page formats, what they mean and what they refuse."""

import pytest

from cachequant.errors import InputError
from cachequant.kv import formats


@pytest.mark.parametrize(
    "name, same, sides, exact",
    [
        ("fp32", "k32v32", (32, 32), 0),
        ("fp16", "k16v16", (16, 16), 0),
        ("int8", "k8v8", (8, 8), 1),
        ("k4v3", "k4v3", (4, 3), 1),
        ("k4v4+exact2", "k4v4+exact2", (4, 4), 2),
        ("k16v4", "k16v4", (16, 4), 1),
    ],
)
def test_names(name, same, sides, exact):
    format = formats.get(name)
    assert (format.sides, format.exact_pages, format.name) == (sides, exact, name)
    assert formats.get(same) == format
    assert formats.get(format) is format


def test_layers_may_differ():
    format = formats.get("k4v4,0-1:k8v8,5:fp16")
    assert format.layers(6) == [(8, 8), (8, 8), (4, 4), (4, 4), (4, 4), (16, 16)]
    assert format.name == "k4v4,0-1:k8v8,5:fp16"
    with pytest.raises(InputError, match="names layer 5; the model has layers 0 to 4"):
        format.check(5, 64)


@pytest.mark.parametrize(
    "bad",
    ["", "k5v4", "k4", "int4", "k4v4,", "k4v4,x:k8v8", "k4v4,3-1:k8v8", "fp32+exact2", "k4v4+exact", "k4v4,0:k9v9"],
)
def test_other_names_are_refused(bad):
    with pytest.raises(InputError, match=bad.split(",")[0].split("+")[0] or "fp32, fp16"):
        formats.get(bad)


@pytest.mark.parametrize(
    "name, bits",
    [("fp32", 32), ("fp16", 16), ("int8", 8.25), ("k4v4", 4.25), ("k4v3", 3.75), ("k3v3", 3.25), ("k2v2", 2.25)],
)
def test_bits_per_value_count_the_scales(name, bits):
    format = formats.get(name)
    assert format.bits_per_value(30, 64) == bits
    if format.compressed:  # one exact page of 32
        assert format.bits_per_value(30, 64, 1024) == pytest.approx((32 + 31 * bits) / 32)
        assert format.bits_per_value(30, 64, 1025) > format.bits_per_value(30, 64, 1024)
