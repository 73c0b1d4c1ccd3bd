"""GGUF files with random weights, written with the gguf package in each quantization that NumPy can make."""

import gguf

from cachequant.assets import gguf as reader
from cachequant.assets.names import gguf_name
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.random import random_weights

HF = {
    "model_type": "llama", "vocab_size": 96, "max_position_embeddings": 64, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "rope_theta": 5e5, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA = DecoderConfig.from_hf(HF)
QWEN2 = DecoderConfig.from_hf(HF | {"model_type": "qwen2"})
GPT2 = DecoderConfig.from_hf(
    {"model_type": "gpt2", "vocab_size": 96, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,
     "bos_token_id": 1, "eos_token_id": 2}
)  # fmt: skip
F32, F16, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0


def permute(tensor, heads):
    """What the format's converter does to llama's q and k: halves of each head become neighbours."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def write(path, config, kind=F32, architecture=None, fields=(), skip=(), extra=()):
    """A file with random weights; returns them as a reader should find them (quantized and back)."""
    architecture = architecture or config.family
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    if config.family == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_freq_base(config.rope_theta)
        writer.add_rope_dimension_count(config.head_dim)
    add_tokenizer(writer, config.vocab)
    for add, *values in fields:
        getattr(writer, add)(*values)
    want = {}
    for name, tensor in random_weights(config).items():
        if name in skip:
            continue
        heads = {"q": config.heads, "k": config.kv_heads}.get(name.rsplit(".", 2)[1])
        stored = permute(tensor, heads) if heads and architecture == "llama" else tensor
        used = kind if tensor.ndim == 2 else F32
        raw = stored if used == F32 else gguf.quants.quantize(stored, used)
        back = stored if used == F32 else gguf.quants.dequantize(raw, used)
        want[name] = reader.unpermute(back, heads) if heads and architecture == "llama" else back
        writer.add_tensor(gguf_name(config, name), raw, raw_dtype=used)
    for name, tensor in extra:
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return want


def add_tokenizer(writer, vocab):
    letters = [chr(c) for c in range(ord("!"), ord("!") + vocab - 5)]
    tokens = ["<unk>", "<start>", "<end>", *letters, "ab", "<pad>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([3, 3, 3, *(1 for _ in letters), 1, 4])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
