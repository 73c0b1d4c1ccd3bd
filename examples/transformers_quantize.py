"""Quantize a transformers model on load, save it, and open the files with transformers and with cachequant.

    python examples/transformers_quantize.py MODEL FOLDER [--scheme int8] [--head int8-block32] [--prompt "Paris is"]

MODEL is a hub id or a folder, FOLDER a new one for the quantized checkpoint.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cachequant as cq
from cachequant.hf import CacheQuantConfig

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("folder")
parser.add_argument("--scheme", default="int8")
parser.add_argument("--head")
parser.add_argument("--prompt", help="a text; without it, or without a tokenizer, a few token ids serve")
parser.add_argument("--new", type=int, default=20)


def main() -> None:
    """Quantize, generate, save, load twice."""
    options = parser.parse_args()

    # 1. quantize while loading: the float weights of one layer at a time are in memory
    config = CacheQuantConfig(scheme=options.scheme, head=options.head)
    model = AutoModelForCausalLM.from_pretrained(options.model, quantization_config=config)

    # 2. use it as any other model
    tokenizer = AutoTokenizer.from_pretrained(options.model) if options.prompt else None
    inputs = tokenizer(options.prompt, return_tensors="pt") if tokenizer else {"input_ids": torch.arange(1, 9)[None]}
    ids = model.generate(**inputs, max_new_tokens=options.new, do_sample=False)
    print("generated:", tokenizer.decode(ids[0]) if tokenizer else ids[0].tolist())

    # 3. save codes instead of floats, and load them again: the same bits
    model.save_pretrained(options.folder)
    if tokenizer:
        tokenizer.save_pretrained(options.folder)
    again = AutoModelForCausalLM.from_pretrained(options.folder)
    with torch.inference_mode():
        print("same bits after reloading:", torch.equal(model(ids).logits, again(ids).logits))

    # 4. the same files in cachequant's own decoder, which is faster still
    ours = cq.load(options.folder)
    found = ours.generate(inputs["input_ids"][0].tolist(), max_new_tokens=options.new)
    print(f"cachequant, {ours.scheme.name}:", found.text if tokenizer else found.ids)


if __name__ == "__main__":
    main()
