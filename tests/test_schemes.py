"""Names, presets and the cost in bits of the schemes."""

from dataclasses import replace

import pytest

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.schemes import BFP8, EXACT, INT8, Block, Quantizer, Row, ScaleRule, Scheme, Tensor, Transform


def test_presets_and_grid():
    assert list(schemes.PRESETS) == [
        "fp32", "int8", "bfp8", "int8-block32", "q8_0", "bfp8-row", "int8-tensor-w", "int8-tensor", "w8", "bfp8-w",
        "w8a12", "w8a16", "int8-x32", "int8-x64", "int8-x128", "int8-hadamard",
        "int8-hadamard-x128", "int8-smooth",
    ]  # fmt: skip
    assert len(schemes.grid()) == 35
    assert schemes.get("block32-pow2").weight == schemes.get("bfp8").weight == BFP8
    assert schemes.get("row-exact").activation == INT8


def test_heads():
    scheme = schemes.get("int8+head")
    assert (scheme.name, scheme.head.name, scheme.head.scale_bits) == ("int8+head", "block32-exact-fp16", 16)
    assert schemes.get("int8", head="int8-block32") == scheme
    assert schemes.get(schemes.get("bfp8"), head="int8") == schemes.get("bfp8+head:int8")


@pytest.mark.parametrize("name", ["int7", "", "int8+", "int8+tail", "row-snap3", "block48-exact", "int8+head:fp4"])
def test_unknown_names_list_the_known(name):
    with pytest.raises(InputError, match="presets: fp32, int8"):
        schemes.get(name)


def test_unknown_head_and_odd_sizes():
    for make in (
        lambda: schemes.get("int8", head="fp4"),
        lambda: Block(48),
        lambda: ScaleRule(3),
        lambda: Quantizer(Block(32), ScaleRule(1), half=True),
        lambda: Quantizer(Row(), EXACT, bits=7),
        lambda: Quantizer(Row(), EXACT, half=True, bits=12),
        lambda: Scheme("odd", replace(INT8, bits=12)),
        lambda: Scheme("odd", INT8, INT8, replace(INT8, bits=16)),
        lambda: Scheme("odd", None, INT8),
        lambda: Scheme("odd", INT8, transform=Transform(hadamard=64)),
        lambda: Scheme("odd", INT8, Quantizer(Tensor(), EXACT), transform=Transform(hadamard=64)),
    ):
        with pytest.raises(InputError):
            make()


def test_only_dynamic_tensor_activations_depend_on_the_chunk():
    unstable = [s.name for s in (*schemes.PRESETS.values(), *schemes.grid().values()) if not s.chunk_stable]
    assert unstable == ["int8-tensor", *(n for n in schemes.grid() if n.startswith("tensor-"))]
