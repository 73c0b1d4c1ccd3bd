"""Quantized layers as torch modules: they hold what the kernels read, and save what checkpoints hold.

They run on the CPU, in float32, without gradients. `state_dict` has `qweight`, `scales`, the empty `weight` and `bias`,
named and stored as in `cachequant.checkpoint.layout`; the codes are unpacked when it is asked for.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cachequant.checkpoint.invariants import check_quantized
from cachequant.checkpoint.layout import GUARD, coded
from cachequant.decoder.linear import PackedLinear, quantize_matrix
from cachequant.errors import AssetError, InputError
from cachequant.hf import ops
from cachequant.hf.unpack import unpack
from cachequant.kernels import gemm
from cachequant.quantize import Quantized
from cachequant.quantizers import Quantizer
from cachequant.schemes import Transform
from cachequant.transform import basis

_LOADED = "_is_hf_initialized"  # transformers' mark of tensors from the checkpoint; it fills gaps with anything
_TORCH = {"I8": torch.int8, "I16": torch.int16, "F16": torch.float16, "F32": torch.float32}


@dataclass(frozen=True)
class LayerFormat:
    """Formats of one layer.

    weight : of the codes.
    activation : how inputs are quantized; None multiplies them in float32.
    transform : of the inputs' basis, or None.
    """

    weight: Quantizer
    activation: Quantizer | None = None
    transform: Transform | None = None


class _Quantized(nn.Module):
    """What linear layer and embedding share: an (N, K) matrix that is awaited, and then packed.

    Parameters
    ----------
    n, k : shape of the matrix as (out, in).
    form : its format.
    bias : whether there is one.
    """

    def __init__(self, n: int, k: int, form: LayerFormat, bias: bool = False):
        super().__init__()
        if form.transform:
            form.transform.check(k)
        self.n, self.k, self.form = n, k, form
        self.packed: PackedLinear | None = None
        self.number, self.training = -1, False
        self.register_buffer("bias", torch.empty(n, dtype=torch.float32) if bias else None)

    def await_weights(self, shape: tuple[int, int] | None = None) -> None:
        """Make room, on the current device, for what is going to be loaded.

        shape : of a float32 matrix, as the checkpoint has it; None for codes.
        """
        if shape is not None:
            self.weight = nn.Parameter(torch.empty(shape, dtype=torch.float32), requires_grad=False)
            return
        for name, stored in coded(self.form.weight, self.n, self.k).items():
            self.register_buffer(name, torch.empty(stored.shape, dtype=_TORCH[stored.dtype]))

    def quantize(self, weight: torch.Tensor) -> None:
        """Quantize an (N, K) matrix of floats. Raises NumericsError for NaN and infinities."""
        form = self.form
        changed = form.transform and basis(form.transform, self.k)
        found = weight.detach().to(torch.float32).contiguous().numpy()
        self._pack(quantize_matrix(found, form.weight, changed))

    def finish(self, name: str) -> None:
        """Pack the codes that were loaded, checked; `name` is the layer's, for the message.

        Raises
        ------
        AssetError
            A tensor was not in the checkpoint, or codes and scales break the format.
        """
        for key, tensor in [*self.named_parameters(recurse=False), *self.named_buffers(recurse=False)]:
            made_here = key == GUARD and self.packed is not None
            if not (made_here or getattr(tensor, _LOADED, False)):
                raise AssetError(f"tensor {f'{name}.{key}'!r} is missing")
        if self.packed is None:
            found = Quantized(self.qweight.numpy(), self.scales.numpy(), self.form.weight)
            check_quantized(found, f"{name}.qweight", f"{name}.scales")
            self._pack(found)
        elif self.bias is not None:
            self._hold(self.packed.weight)

    def _pack(self, found: Quantized) -> None:
        changed = self.form.transform and basis(self.form.transform, self.k)
        for name in ("qweight", "scales", GUARD):
            self._buffers.pop(name, None)
            self._parameters.pop(name, None)
        self._hold(gemm.pack_codes(found, self.form.activation, changed))

    def _hold(self, matrix: gemm.PackedMatrix) -> None:
        bias = None if self.bias is None or self.bias.is_meta else self.bias.numpy()
        self.share(PackedLinear(matrix, bias, self.form.activation))

    def share(self, packed: PackedLinear) -> None:
        """Use a packed matrix, which may be that of another layer."""
        self.packed, self.number = packed, ops.put_down(packed)
        self.register_buffer(GUARD, _guard(), persistent=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrix and of the bias."""
        return self.packed.nbytes

    def codes(self) -> Quantized:
        """The codes and scales that checkpoints hold."""
        return unpack(self.packed.weight, self.form.weight)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.packed is not None:
            found = self.codes()
            destination[prefix + "qweight"] = torch.from_numpy(found.codes)
            destination[prefix + "scales"] = torch.from_numpy(found.scales)
            destination[prefix + GUARD] = _guard()

    def _load_from_state_dict(self, state, prefix, local_metadata, strict, missing, unexpected, errors):
        """Codes replace codes; what is not in the state stays."""
        arrays = []
        for name, stored in coded(self.form.weight, self.n, self.k).items():
            tensor = state.get(prefix + name)
            if tensor is None:
                missing.append(prefix + name)
            elif tuple(tensor.shape) != stored.shape or tensor.dtype != _TORCH[stored.dtype]:
                errors.append(
                    f"{prefix + name} is {tensor.dtype} of shape {tuple(tensor.shape)}; "
                    f"the layer takes {_TORCH[stored.dtype]} of shape {stored.shape}"
                )
            else:
                arrays.append(tensor.detach().cpu().numpy().copy())
        if self.bias is not None and prefix + "bias" in state:
            self.bias = state[prefix + "bias"].detach().to(torch.float32, copy=True)
        elif self.bias is not None:
            missing.append(prefix + "bias")
        if len(arrays) == 3:
            found = Quantized(*arrays[:2], self.form.weight)
            check_quantized(found, f"{prefix}qweight", f"{prefix}scales")
            self._pack(found)

    def __getstate__(self):
        """For copies and pickles: codes instead of panels, which belong to this process and this CPU."""
        state = dict(self.__dict__)
        state["packed"] = None if self.packed is None else self.codes()
        return state

    def __setstate__(self, state):
        found = state.pop("packed")
        super().__setstate__(state | {"packed": None})
        if found is not None:
            self._pack(found)

    def train(self, mode: bool = True):
        """Refused: InputError. `train(False)`, which is `eval()`, has nothing to do."""
        if mode:
            raise InputError("train(): quantized layers have no gradients; train the float model and quantize it again")
        return super().train(False)

    def extra_repr(self) -> str:
        return f"{self.form.weight.name}, {self.k} -> {self.n}"

    def _unready(self, x: torch.Tensor) -> InputError:
        if self.packed is None:
            return InputError(f"{type(self).__name__} has no weights yet: load or quantize it first")
        if x.requires_grad:
            return InputError(
                "a quantized layer got an input that needs gradients; run the model under torch.inference_mode() or "
                "torch.no_grad()"
            )
        return InputError(f"a quantized layer got {x.dtype} on {x.device}; allowed: {self.takes} on the CPU")


class QuantizedLinear(_Quantized):
    """`x @ W.T + b` on 8-bit codes, in place of `torch.nn.Linear` and of transformers' `Conv1D`.

    Attributes
    ----------
    in_features, out_features : int
    packed : PackedLinear
        The matrix as the kernels read it.
    """

    takes = "torch.float32"

    @property
    def in_features(self) -> int:
        return self.k

    @property
    def out_features(self) -> int:
        return self.n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) float32 -> (..., out). Raises InputError for another type, device or width, or under gradients."""
        if (
            x.dtype is not torch.float32
            or self.packed is None
            or not x.is_cpu
            or (x.requires_grad and torch.is_grad_enabled())
        ):
            raise self._unready(x)
        if x.shape[-1] != self.k:
            raise InputError(f"a quantized layer of {self.k} inputs got {tuple(x.shape)}")
        if torch.compiler.is_compiling():
            return ops.linear(x, self.number, self.n)
        return ops.run(x, self.packed)


class QuantizedEmbedding(_Quantized):
    """Look-up in 8-bit codes, which a quantized head shares.

    Attributes
    ----------
    num_embeddings, embedding_dim : int
    packed : PackedLinear
        The matrix as the kernels read it.
    """

    takes = "torch.int64 or torch.int32"
    padding_idx = None

    @property
    def num_embeddings(self) -> int:
        return self.n

    @property
    def embedding_dim(self) -> int:
        return self.k

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(...) ids -> (..., width) float32. Raises InputError for ids that are no rows, another type or device."""
        if ids.dtype not in (torch.int64, torch.int32) or self.packed is None or not ids.is_cpu:
            raise self._unready(ids)
        if torch.compiler.is_compiling():
            return ops.embedding(ids, self.number, self.k)
        return ops.look_up(ids, self.packed)


class SharedHead(QuantizedLinear):
    """A head on the matrix of the embedding, which saves it."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        pass

    def _load_from_state_dict(self, state, prefix, local_metadata, strict, missing, unexpected, errors):
        pass


def _guard() -> torch.Tensor:
    """An empty tensor with memory of its own, so that nobody takes two of them for the same."""
    return torch.from_numpy(np.zeros(1, np.int8))[:0]
