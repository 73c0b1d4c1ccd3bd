"""What the canonical tensors are called in Hugging Face checkpoints and in GGUF files."""

from cachequant.decoder.config import DecoderConfig

# canonical name inside a layer: (Hugging Face, GGUF)
_GPT2_LAYER = {
    "attn_norm": ("ln_1", "attn_norm"),
    "attn.qkv": ("attn.c_attn", "attn_qkv"),
    "attn.o": ("attn.c_proj", "attn_output"),
    "mlp_norm": ("ln_2", "ffn_norm"),
    "mlp.up": ("mlp.c_fc", "ffn_up"),
    "mlp.down": ("mlp.c_proj", "ffn_down"),
}
_LLAMA_LAYER = {
    "attn_norm": ("input_layernorm", "attn_norm"),
    "attn.q": ("self_attn.q_proj", "attn_q"),
    "attn.k": ("self_attn.k_proj", "attn_k"),
    "attn.v": ("self_attn.v_proj", "attn_v"),
    "attn.o": ("self_attn.o_proj", "attn_output"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    "mlp.gate": ("mlp.gate_proj", "ffn_gate"),
    "mlp.up": ("mlp.up_proj", "ffn_up"),
    "mlp.down": ("mlp.down_proj", "ffn_down"),
}
_GPT2_TOP = {
    "embed": ("transformer.wte", "token_embd"),
    "positions": ("transformer.wpe", "position_embd"),
    "final_norm": ("transformer.ln_f", "output_norm"),
    "head": ("lm_head", "output"),
}
_LLAMA_TOP = {
    "embed": ("model.embed_tokens", "token_embd"),
    "final_norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
}


def hf_name(config: DecoderConfig, canonical: str) -> str:
    """Hugging Face's full name (with `transformer.` or `model.`) of a canonical tensor."""
    return _rename(config, canonical, 0, "transformer.h" if config.family == "gpt2" else "model.layers")


def gguf_name(config: DecoderConfig, canonical: str) -> str:
    """GGUF's name of a canonical tensor."""
    return _rename(config, canonical, 1, "blk")


def is_conv1d(config: DecoderConfig, canonical: str) -> bool:
    """Whether Hugging Face stores this weight as (in, out), as GPT-2's `Conv1D` does."""
    return config.family == "gpt2" and canonical.endswith(
        (".attn.qkv.weight", ".o.weight", ".up.weight", ".down.weight")
    )


def _rename(config: DecoderConfig, canonical: str, column: int, layers: str) -> str:
    stem, kind = canonical.rsplit(".", 1)
    if stem.startswith("layers."):
        _, layer, inner = stem.split(".", 2)
        table = _GPT2_LAYER if config.family == "gpt2" else _LLAMA_LAYER
        return f"{layers}.{layer}.{table[inner][column]}.{kind}"
    table = _GPT2_TOP if config.family == "gpt2" else _LLAMA_TOP
    return f"{table[stem][column]}.{kind}"
