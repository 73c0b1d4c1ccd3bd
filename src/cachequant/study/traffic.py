"""What one forward pass has to read and to multiply, from the shapes of a model alone.

At batch 1 a decoded token reads every weight once and every cached key and value once (Pope et al., "Efficiently
scaling transformer inference", 2022, section 2). Bandwidth divided by these bytes bounds decode, whatever the kernel.
"""

from cachequant import schemes
from cachequant.decoder.config import DecoderConfig
from cachequant.schemes import Quantizer

FP32_BYTES = 4


def shape(config: DecoderConfig) -> dict:
    """Facts of a model that tables and the diagram show.

    Returns
    -------
    family, layers, vocab, width : of the configuration.
    quantized : number of matrices that a scheme turns into codes.
    block_matrices : [{name, out, in}] of one block.
    multiplications : {blocks, head} multiply-adds a token.
    kv_bytes : of the float32 keys and values of one token.
    """
    matrices = block_matrices(config)
    per_block = sum(m["out"] * m["in"] for m in matrices)
    return {
        "family": config.family,
        "layers": config.layers,
        "vocab": config.vocab,
        "width": config.width,
        "quantized": len(config.linear_names()),
        "block_matrices": matrices,
        "multiplications": {"blocks": per_block * config.layers, "head": config.vocab * config.width},
        "kv_bytes": 2 * config.layers * config.kv_width * FP32_BYTES,
    }


def block_matrices(config: DecoderConfig) -> list[dict]:
    """Names and sizes of the matrices of one block, in the order of the forward pass."""
    queries, keys, width, ffn = config.attention_width, config.kv_width, config.width, config.ffn
    sizes = {
        "attn.qkv": (queries + 2 * keys, width),
        "attn.q": (queries, width),
        "attn.k": (keys, width),
        "attn.v": (keys, width),
        "attn.o": (width, queries),
        "mlp.gate": (ffn, width),
        "mlp.up": (ffn, width),
        "mlp.down": (width, ffn),
    }
    names = [n.removeprefix("layers.0.") for n in config.linear_names() if n.startswith("layers.0.")]
    return [{"name": n, "out": sizes[n][0], "in": sizes[n][1]} for n in names]


def weight_bytes(config: DecoderConfig, scheme: str) -> dict:
    """Bytes of matrices that a decoded token reads under a scheme, scales as stored: {blocks, head, total}."""
    chosen = schemes.get(scheme)
    blocks = sum(_bytes(m["out"], m["in"], chosen.weight) for m in block_matrices(config)) * config.layers
    head = _bytes(config.vocab, config.width, chosen.head)
    return {"blocks": blocks, "head": head, "total": blocks + head}


def prompt_operations(config: DecoderConfig, tokens: int) -> dict:
    """Multiplications and additions of a prompt in one pass.

    Returns
    -------
    attention : causal ones of all layers: for each query and head a product with every key up to its own, and one with
        every value.
    products : of the matrix products, head at the last position only.
    """
    pairs, multiplications = tokens * (tokens + 1) // 2, shape(config)["multiplications"]
    return {
        "attention": 4 * pairs * config.layers * config.attention_width,
        "products": 2 * (multiplications["blocks"] * tokens + multiplications["head"]),
    }


def bits(model: dict, reads: dict) -> dict:
    """Bits a weight, scales as stored, as a mean over the matrices: {blocks, head}.

    Parameters
    ----------
    model : what `shape` gives.
    reads : what `weight_bytes` gives for a scheme.
    """
    return {part: 8 * reads[part] / model["multiplications"][part] for part in ("blocks", "head")}


def reached(model: dict, bench: dict, arm: str) -> dict:
    """Traffic and arithmetic that an arm's speed amounts to; attention's own multiplications are not counted.

    Parameters
    ----------
    model : what `shape` gives.
    bench : object of the decode benchmark, with `facts` and the workload in its provenance.

    Returns
    -------
    bytes : read for a decoded token, weights and float32 keys and values halfway through the new tokens.
    decode_gb_s : these bytes times the decode speed.
    prefill_gops : billion operations a second of the prompt's matrix products, head at its last position only.
    """
    work, measured = bench["provenance"]["workload"], bench["arms"][arm]
    read = bench["facts"][arm]["weight_bytes"] + model["kv_bytes"] * (work["prompt"] + work["new"] / 2)
    multiplications = model["multiplications"]["blocks"] * work["prompt"] + model["multiplications"]["head"]
    seconds = work["prompt"] / measured["prefill_tok_s"]["median"]
    return {
        "bytes": read,
        "decode_gb_s": read * measured["decode_tok_s"]["median"] / 1e9,
        "prefill_gops": 2 * multiplications / seconds / 1e9,
    }


def _bytes(rows: int, k: int, quantizer: Quantizer | None) -> float:
    return rows * k * (quantizer.bits_per_value(rows, k) / 8 if quantizer else FP32_BYTES)
