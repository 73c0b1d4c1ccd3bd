"""A peer by itself: transformers on a plain folder, in a process that imports nothing of this library.

Run by path (`python -P alone.py`), with a request on standard input: {folder, arm, ids, new, repeats, threads}. Prints
{prefill_tok_s, decode_tok_s}, medians. It has its own loop on purpose: it is what the arms of the benchmark are checked
against.
"""

import json
import statistics
import sys
import time
import warnings


def load(folder: str, int8: bool):
    """transformers' model in float32, or with torch's dynamic int8 in place of every linear layer."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if not int8:
        return model
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                linear = torch.nn.Linear(*child.weight.shape)
                linear.weight.data, linear.bias.data = child.weight.data.T.contiguous(), child.bias.data
                setattr(parent, name, linear)
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def once(model, ids: list[int], new: int) -> tuple[float, float]:
    """Seconds of the prefill and of the following new - 1 tokens."""
    import torch

    with torch.inference_mode():
        begin = time.perf_counter()
        out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        middle = time.perf_counter()
        for _ in range(new - 1):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, cache=out.cache, use_cache=True, logits_to_keep=1)
    return middle - begin, time.perf_counter() - middle


def main() -> None:
    import torch

    request = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    torch.set_num_threads(request["threads"])
    model = load(request["folder"], request["arm"] == "torch-int8")
    ids, new = request["ids"], request["new"]
    once(model, ids, min(new, 4))
    runs = [once(model, ids, new) for _ in range(request["repeats"])]
    prefill, decode = (statistics.median(column) for column in zip(*runs, strict=True))
    print(json.dumps({"prefill_tok_s": len(ids) / prefill, "decode_tok_s": (new - 1) / decode}))


if __name__ == "__main__":
    main()
