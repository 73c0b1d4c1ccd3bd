"""Quantize a model once, load it anywhere: `python examples/checkpoint.py smollm2-135m ./smollm2-int8 int8+head`."""

import sys

import cachequant as cq
from cachequant.checkpoint.write import write_checkpoint


def main(model: str, folder: str, scheme: str = "int8+head") -> None:
    write_checkpoint(model, folder, scheme)
    stored, memory = cq.load(folder), cq.load(model, scheme)
    prompt = [1, 2, 3] if stored.tokenizer is None else "The history of Paris"
    found = stored.generate(prompt, max_new_tokens=20)
    print(f"{folder}: {stored.scheme.name}, {stored.weight_bytes / 1e6:.1f} MB a token")
    print(found.text if stored.tokenizer else found.ids)
    print("same tokens as quantizing in memory:", found.ids == memory.generate(prompt, max_new_tokens=20).ids)


if __name__ == "__main__":
    main(*sys.argv[1:])
