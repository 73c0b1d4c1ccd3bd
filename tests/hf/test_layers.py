"""Quantized layers as torch modules: shapes, memory, refusals, compiled code; codes back out of panels."""

import numpy as np
import pytest

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.kernels import gemm, pack, simd
from cachequant.quantize import quantize
from helpers import transformers_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import library  # noqa: E402

from cachequant.hf import QuantizedLinear, ops, quantize_  # noqa: E402
from cachequant.hf.layers import LayerFormat, QuantizedEmbedding  # noqa: E402
from cachequant.hf.unpack import unpack  # noqa: E402

QUANTIZERS = {s.weight.name: s.weight for s in (*schemes.PRESETS.values(), *schemes.grid().values()) if s.weight}
QUANTIZERS |= {q.name: q for q in schemes.HEADS.values()}


@pytest.fixture
def layer():
    """A layer of 40 inputs and 35 outputs, with bias."""
    scheme = schemes.get("int8")
    made = QuantizedLinear(35, 40, LayerFormat(scheme.weight, scheme.activation), bias=True)
    torch.manual_seed(0)
    made.bias = torch.randn(35)
    made.quantize(torch.randn(35, 40))
    return made


@pytest.mark.parametrize("name", QUANTIZERS)
def test_codes_come_back_out_of_panels(rng, name):
    for shape in ((35, 67), (16, 64), (3, 5)):
        w = rng.standard_normal(shape).astype(np.float32) * np.float32(2.0) ** rng.integers(-9, 9, (shape[0], 1))
        w[1], w[:, : shape[1] // 2] = 0, 0
        w[2, 0] = 1e-30
        q = quantize(w.astype(np.float32), QUANTIZERS[name])
        for kernel_set in simd.SETS.values():
            found = unpack(pack.pack_codes(q, kernel_set), q.quantizer)
            for got, expected in ((found.codes, q.codes), (found.scales, q.scales)):
                assert got.dtype == expected.dtype and np.array_equal(got, expected)


@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40), (1, 1, 40), (0, 40), (2, 0, 40), (2, 2, 2, 40)])
def test_any_shape_is_rows(layer, shape):
    x = torch.randn(shape)
    expected = layer.packed(x.numpy().reshape(-1, 40)).reshape(*shape[:-1], 35)
    assert np.array_equal(layer(x).numpy(), expected)


def test_strided_inputs(layer):
    x = torch.randn(5, 40, 3).transpose(1, 2)
    assert torch.equal(layer(x), layer(x.contiguous()))
    assert torch.equal(layer(x[:, 1]), layer(x.contiguous())[:, 1])


def test_memory_of_tensors_is_used_without_a_copy(layer, monkeypatch):
    seen = []
    matmul = gemm.matmul
    monkeypatch.setattr(gemm, "matmul", lambda x, *rest: seen.append((x, rest[-1])) or matmul(x, *rest))
    x = torch.randn(2, 3, 40)
    out = layer(x)
    assert [a.ctypes.data for a in seen[0]] == [x.data_ptr(), out.data_ptr()]


def test_refusals(layer):
    x = torch.randn(2, 40)
    for bad, message in (
        (x.double(), "torch.float64 on cpu; allowed: torch.float32 on the CPU"),
        (x.to(torch.bfloat16), "torch.bfloat16"),
        (x.to("meta"), "on meta"),
        (x[:, :39], r"of 40 inputs got \(2, 39\)"),
        (x.clone().requires_grad_(), r"torch.inference_mode\(\) or torch.no_grad\(\)"),
    ):
        with pytest.raises(InputError, match=message):
            layer(bad)
    with torch.no_grad():
        assert not layer(x.clone().requires_grad_()).requires_grad
    with pytest.raises(InputError, match="no gradients"):
        layer.train()
    assert not layer.eval().training
    with pytest.raises(InputError, match="no weights yet"):
        QuantizedLinear(3, 4, layer.form)(torch.ones(4))


def test_embedding(layer):
    table = QuantizedEmbedding(35, 40, layer.form)
    table.quantize(torch.randn(35, 40))
    truth = torch.from_numpy(gemm.rows(table.packed.weight, np.arange(35)))
    for ids in (torch.tensor([[3, 34], [0, 7]]), torch.tensor([5], dtype=torch.int32), torch.empty(0, 2).long()):
        assert torch.equal(table(ids), truth[ids.long()])
    for ids, message in ((torch.tensor([1, 35]), "from 1 to 35; allowed: 0 to 34"), (torch.tensor([-1]), "from -1")):
        with pytest.raises(InputError, match=message):
            table(ids)
    with pytest.raises(InputError, match="torch.float32 on cpu; allowed: torch.int64"):
        table(torch.ones(2))


def test_operators_obey_the_rules_of_torch(layer):
    x, ids = torch.randn(2, 3, 40), torch.tensor([[3, 34]])
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    library.opcheck(ops.linear, (x, layer.number, 35), test_utils=checks)
    library.opcheck(ops.embedding, (ids, layer.number, 40), test_utils=checks)


def test_a_model_compiles_into_one_graph():
    model = quantize_(transformers_model("llama-gqa-tied"), "int8", "int8-block32")
    compiled, ids = torch.compile(model, fullgraph=True, backend="aot_eager"), torch.arange(3, 20)[None]
    with torch.inference_mode():
        assert torch.equal(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits)


def test_compiled_code_refuses_too(layer):
    compiled = torch.compile(layer, backend="eager")
    with torch.inference_mode(), pytest.raises(Exception, match="allowed: torch.float32 on the CPU"):
        compiled(torch.randn(2, 40).double())


def test_packed_matrices_are_forgotten_with_their_layer(layer):
    number = layer.number
    assert number in ops._packed
    layer.packed = None
    assert number not in ops._packed
