"""Cut prompts: none differs in a session; a decoder that does is told; transformers round as the schemes do."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError
from cachequant.study import chunking
from helpers import checkpoint, random_model

IDS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]


@pytest.fixture(scope="module", params=["gpt2", "llama-gqa-tied"])
def model(request, tmp_path_factory):
    return cq.load(checkpoint(request.param, str(tmp_path_factory.mktemp("chunking"))))


@pytest.mark.parametrize("scheme", ["int8", "row-snap4", "bfp8"])
def test_a_session_does_not_see_the_cut(model, scheme):
    found = chunking.compare(chunking.ours(model.with_scheme(scheme)), [IDS], "9+2")
    assert found == {"differences": [0.0], "median": 0.0, "largest": 0.0, "greedy_changes": 0, "prompts": 1}


def test_a_difference_and_another_token_are_told():
    def logits(parts):
        return np.array([1.0, 2.0 - 3.0 * (len(parts) > 1) * (len(parts[-1]) == 2), 0.5], np.float32)

    found = chunking.compare(logits, [[1, 2, 3], [1, 2, 3, 4]], "1+2")
    assert (found["differences"], found["greedy_changes"], found["prompts"]) == ([3.0, 0.0], 1, 2)


@pytest.mark.parametrize("split", ["9", "9+", "0+2", "9+2+1", "a+b", "-1+2"])
def test_other_splits_are_refused(split):
    with pytest.raises(InputError, match="such as 9"):
        chunking.parts(split)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(names=["int9"]), "unknown scheme 'int9'"),
        (dict(splits=["9"]), "split '9'"),
        (dict(products=["float16"]), "'float16': allowed are float32, float64"),
    ],
    ids=["scheme", "split", "products"],
)
def test_what_cannot_run_is_refused_beforehand(wrong, words):
    with pytest.raises(InputError, match=words):
        chunking.check(**dict(names=["int8"], splits=["9+2"], products=["float32"]) | wrong)


def test_prompts_have_the_length_of_the_split():
    assert chunking.parts("9+2") == (9, 2)
    assert list(map(len, chunking.prompts(random_model(), "9+2", 3))) == [11, 11, 11]


def test_exact_scales_move_and_snapped_ones_do_not():
    found = chunking.moved_codes(random_model(), [i % 61 for i in range(40)], ["fp32", "int8", "bfp8-row", "w8"], 1e-5)
    assert list(found) == ["int8", "bfp8-row"]
    assert found["int8"]["scales"] > 0.5 > 0.01 > found["bfp8-row"]["scales"]
    for row in found.values():
        assert 0 <= row["codes"] < 1e-2
        assert 0 < row["largest"] < 1


@pytest.mark.parametrize("products", ["float32", "float64"])
@pytest.mark.parametrize("scheme", ["fp32", "int8", "bfp8", "w8"])
def test_transformers_with_rounded_layers_are_the_scheme(model, scheme, products):
    from cachequant.study.rounded_engine import Rounded

    rounded = Rounded(model._asset, 1)
    rounded.use(scheme, products)
    with model.with_scheme(scheme).session() as session:
        np.testing.assert_allclose(rounded.logits([IDS]), session.extend(IDS), atol=2e-3)
    np.testing.assert_allclose(rounded.logits([IDS[:9], IDS[9:]]), rounded.logits([IDS]), atol=0.5)


def test_transforms_are_refused(model):
    from cachequant.study.rounded_engine import Rounded

    rounded = Rounded(model._asset, 1)
    with pytest.raises(InputError, match="int8-hadamard"):
        rounded.use("int8-hadamard")
