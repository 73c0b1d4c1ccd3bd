"""Quantize a model into a checkpoint folder, one matrix in memory at a time."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cachequant import schemes
from cachequant.assets import cachedir, models
from cachequant.assets.hf_folder import INDEX, QUANT_METHOD
from cachequant.assets.mapped import release
from cachequant.assets.materialize import new_folder, write_description, write_json
from cachequant.assets.store import ModelAsset
from cachequant.assets.tensorfile import TensorWriter
from cachequant.checkpoint.layout import NOTE, VERSION, layout, parts, quantizer_of, require_storable, shards
from cachequant.checkpoint.layout import tensor_bytes as bytes_of
from cachequant.checkpoint.note import new_note
from cachequant.decoder.linear import quantize_matrix
from cachequant.decoder.weights import matrix
from cachequant.errors import InputError
from cachequant.quantize import Quantized
from cachequant.schemes import Scheme
from cachequant.transform import basis

SMALLEST_SHARD = 1 << 20


def write_checkpoint(
    model: str | Path | ModelAsset,
    folder: str | Path,
    scheme: str | Scheme = "int8",
    head: str | None = None,
    shard_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a quantized checkpoint; the folder appears whole or not at all.

    Parameters
    ----------
    model : str, Path or ModelAsset
        A float32 model, as `models.resolve` takes it, or what that returned.
    folder : str or Path
        New, or empty.
    scheme, head
        As in `schemes.get`.
    shard_size : int, optional
        Most bytes of tensors in a file; None writes one file.
    progress : callable, optional
        Called with the tensors written and to write.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InputError
        A folder that is not empty, a scheme that a checkpoint cannot hold or that does not fit the model, a shard size
        that is too small, or a model that is quantized already.
    """
    scheme = schemes.get(scheme, head)
    require_storable(scheme)
    if shard_size is not None and shard_size < SMALLEST_SHARD:
        raise InputError(f"shard size {shard_size!r}: allowed are at least {SMALLEST_SHARD} bytes")
    folder = new_folder(folder)
    asset = model if isinstance(model, ModelAsset) else models.resolve(model)
    asset.require_float32()
    if scheme.transform:
        for k in (asset.config.width, asset.config.attention_width, asset.config.ffn):
            scheme.transform.check(k)
    config = asset.config.to_hf() | {
        "quantization_config": {"quant_method": QUANT_METHOD, "format_version": VERSION, "scheme": scheme.name}
    }
    with cachedir.atomic_folder(folder) as partial:
        hashes = _write_tensors(asset, scheme, partial, shard_size, progress)
        write_description(asset, config, partial)
        source = {"name": asset.name, "sha256": asset.sha256, **asset.origin}
        write_json(partial / NOTE, new_note(scheme, asset.weights.parameters, asset.random, source, hashes))
    return folder


def _write_tensors(
    asset: ModelAsset, scheme: Scheme, folder: Path, shard_size: int | None, progress: Callable | None
) -> dict[str, str]:
    """Write all files and return the sha256 of every tensor."""
    files = shards(layout(asset.config, scheme), shard_size)
    names = ["model.safetensors"]
    if len(files) > 1:
        names = [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
        places = {key: name for name, file in zip(names, files, strict=True) for key in file}
        total = sum(stored.nbytes for file in files for stored in file.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    tensors, hashes = _tensors(asset, scheme, progress), {}
    for name, file in zip(names, files, strict=True):
        writer = TensorWriter(folder / name, {key: (s.dtype, s.shape) for key, s in file.items()}, {"format": "pt"})
        for key in file:
            found, tensor = next(tensors)
            assert found == key, (found, key)
            hashes[key] = hashlib.sha256(bytes_of(tensor)).hexdigest()
            writer.write(key, tensor)
        writer.close()
    next(tensors, None)  # lets it report the last one
    return hashes


def _tensors(asset: ModelAsset, scheme: Scheme, progress: Callable | None) -> Iterator[tuple[str, np.ndarray]]:
    for done, (name, tensor) in enumerate(asset.weights.items(), 1):
        keys, quantizer = list(parts(asset.config, scheme, name)), quantizer_of(asset.config, scheme, name)
        if quantizer is None:
            yield keys[0], tensor
        else:
            rotated = scheme.transform if name.startswith("layers.") else None
            coded = matrix(asset.weights, name, quantizer, rotated)
            if not isinstance(coded, Quantized):
                coded = quantize_matrix(tensor, quantizer, rotated and basis(rotated, tensor.shape[1]))
            yield from zip(keys, (coded.codes, coded.scales, np.empty(0, np.int8)), strict=True)
        release(tensor)
        if progress:
            progress(done, len(asset.weights))
