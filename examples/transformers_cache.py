"""Keys and values of a transformers model in 4 bits: as a cache, and with attention that reads the codes.

    python examples/transformers_cache.py FOLDER_OR_HUB_ID

The default model of cachequant comes as such a folder from
`cachequant.assets.materialize.materialize("smollm2-135m", "smollm2")`.
"""

import argparse
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from cachequant.hf import RotatedCache, attach, cache_keyword, detach


def dense_bytes(cache: DynamicCache) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def timed(model, ids, new, **how):
    begin = time.perf_counter()
    out = model.generate(ids, max_new_tokens=new, do_sample=False, return_dict_in_generate=True, **how)
    cache = getattr(out, cache_keyword(model))
    size = dense_bytes(cache) if isinstance(cache, DynamicCache) else cache.bytes()
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    return tokens, size, time.perf_counter() - begin


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kv", default="k4v4", help="page format, such as k4v3 or int8")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=32, help="tokens to generate")
    a = parser.parse_args(arguments)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32).eval()
    ids = torch.randint(0, model.config.vocab_size, (1, a.prompt), generator=torch.Generator().manual_seed(0))

    arms = {"DynamicCache": timed(model, ids, a.new)}
    # a cache for one call: works with every attention implementation
    cache = RotatedCache(model.config, kv=a.kv)
    arms[f"RotatedCache {a.kv}"] = timed(model, ids, a.new, **{cache_keyword(model): cache}, prefill_chunk_size=32)
    # from here on every call of the model, and attention reads the codes
    attach(model, kv=a.kv)
    arms[f"attach {a.kv}"] = timed(model, ids, a.new)
    detach(model)

    exact = arms["DynamicCache"][0]
    for name, (tokens, size, seconds) in arms.items():
        same = sum(x == y for x, y in zip(tokens, exact, strict=True))
        print(f"{name:>20}: {size:>12,} bytes, {seconds:6.2f} s, {same} of {len(exact)} tokens as with DynamicCache")


if __name__ == "__main__":
    main()
