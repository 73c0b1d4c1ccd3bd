"""A model to llama.cpp and back: `python examples/gguf.py smollm2-135m ./smollm2-q8_0.gguf`.

The file holds the codes and scales that this library runs with, so what comes back generates the same tokens.
"""

import sys

import cachequant as cq
from cachequant import schemes
from cachequant.assets import models
from cachequant.assets.gguf_write import export_gguf


def main(model: str, file: str, kv: str = "k4v4") -> None:
    vocabulary = export_gguf(models.resolve(model), file, schemes.get("q8_0+head"))
    print(f"{file}: {'with' if vocabulary else 'without'} a vocabulary")
    ours, back = (cq.load(name, "q8_0+head", kv=kv, calibration="none") for name in (model, file))
    prompt = [1, 2, 3] if back.tokenizer is None else "The history of Paris"
    ids = back.generate(prompt, max_new_tokens=40).ids
    print(ids)
    print("same tokens as before the export:", ids == ours.generate(prompt, max_new_tokens=40).ids)


if __name__ == "__main__":
    main(*sys.argv[1:])
