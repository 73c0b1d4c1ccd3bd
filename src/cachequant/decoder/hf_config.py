"""Hugging Face `config.json` to `DecoderConfig` and back, strictly.

Every field is either read, known not to change what the decoder computes, or refused by name. A field that is switched
off (absent, null, false, empty) is accepted whatever its name.
"""

from collections.abc import Mapping
from typing import Any

from cachequant.decoder.config import DecoderConfig, LinearScaling, Llama3Scaling, RopeScaling
from cachequant.decoder.hf_fields import MISSING, Fields
from cachequant.errors import ConfigError


def read(fields: Mapping[str, Any]) -> DecoderConfig:
    """See `DecoderConfig.from_hf`."""
    model_type = fields.get("model_type")
    readers = {"gpt2": _read_gpt2, "llama": _read_llama, "mistral": _read_llama, "qwen2": _read_llama}
    if not isinstance(model_type, str) or model_type not in readers:
        raise ConfigError(f"model_type is {model_type!r}; allowed: {', '.join(readers)}")
    checked = Fields(fields, model_type)
    config = readers[model_type](checked)
    checked.refuse_the_rest()
    return config


def write(config: DecoderConfig) -> dict[str, Any]:
    """See `DecoderConfig.to_hf`."""
    eos = list(config.eos_ids)
    common = {
        "vocab_size": config.vocab,
        "tie_word_embeddings": config.tied,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": "float32",
    }
    return common | (_write_gpt2 if config.family == "gpt2" else _write_llama)(config)


def _read_gpt2(fields: Fields) -> DecoderConfig:
    fields.require("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    fields.require("scale_attn_weights", (True,), True)
    width, heads = fields.integer("n_embd"), fields.integer("n_head")
    return DecoderConfig(
        family="gpt2",
        vocab=fields.integer("vocab_size"),
        context=fields.integer("n_positions"),
        width=width,
        layers=fields.integer("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_dim=_divide(width, heads, "n_embd", "n_head"),
        ffn=fields.integer("n_inner", 4 * width),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation="gelu_tanh",
        tied=fields.flag("tie_word_embeddings", True),
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        eos_ids=_ids(fields.get("eos_token_id", ())),
        bos_id=fields.integer("bos_token_id", None),
    )


def _read_llama(fields: Fields) -> DecoderConfig:
    fields.require("hidden_act", ("silu", "swish"), "silu")
    fields.require("partial_rotary_factor", (1.0,), 1.0)
    context, heads, width = (
        fields.integer("max_position_embeddings"),
        fields.integer("num_attention_heads"),
        fields.integer("hidden_size"),
    )
    _refuse_windows(fields, context)
    # Qwen2 always has biases on q, k and v and nowhere else; Llama has one flag for q, k, v and the output.
    qwen = fields.model_type == "qwen2"
    bias = False if qwen else fields.flag("attention_bias", False)
    theta, scaling = _read_rope(fields)
    kv_default = heads if fields.model_type == "llama" else MISSING
    head_dim = fields.integer("head_dim", None)
    return DecoderConfig(
        family="llama",
        vocab=fields.integer("vocab_size"),
        context=context,
        width=width,
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", kv_default),
        head_dim=_divide(width, heads, "hidden_size", "num_attention_heads") if head_dim is None else head_dim,
        ffn=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation="silu",
        tied=fields.flag("tie_word_embeddings", False),
        rope_theta=theta,
        rope_scaling=scaling,
        attention_bias=qwen or bias,
        output_bias=bias,
        mlp_bias=False if qwen else fields.flag("mlp_bias", False),
        eos_ids=_ids(fields.get("eos_token_id", ())),
        bos_id=fields.integer("bos_token_id", None),
    )


def _refuse_windows(fields: Fields, context: int) -> None:
    """A sliding window is in effect unless it is switched off or at least as long as the context."""
    window = fields.integer("sliding_window", None)
    if fields.model_type == "mistral" and not fields.has("sliding_window"):
        window = 4096  # the class's default: an explicit null means no window, absence means this
    used = fields.flag("use_sliding_window", fields.model_type != "qwen2")
    if used and window is not None and window < context:
        raise ConfigError(
            f"sliding_window is {window}, shorter than the context of {context}; "
            "allowed: null, or at least max_position_embeddings"
        )
    for kind in fields.typed("layer_types", list, "a list", []):
        if kind != "full_attention":
            raise ConfigError(f"layer_types holds {kind!r}; allowed: 'full_attention'")


def _read_rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Both spellings: `rope_theta` beside `rope_scaling`, or all of it inside `rope_parameters`."""
    inside = fields.mapping("rope_parameters")
    scaling = fields.mapping("rope_scaling") or inside
    theta = inside.get("rope_theta", fields.number("rope_theta", 10000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    allowed = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    if not isinstance(kind, str) or kind not in allowed:
        raise ConfigError(f"rope type is {kind!r}; allowed: {', '.join(allowed)}")
    for name, value in (scaling | inside).items():
        if name in ("rope_type", "type", "rope_theta", *allowed[kind]) or value is None:
            continue
        if (name, value) != ("partial_rotary_factor", 1.0):
            raise ConfigError(f"rope scaling field {name} is {value!r}; allowed with {kind!r}: {allowed[kind]}")
    values = [scaling.get(name) for name in allowed[kind]]
    rule = {"default": None, "linear": LinearScaling, "llama3": Llama3Scaling}[kind]
    return theta, rule(*values) if rule else None


def _write_gpt2(config: DecoderConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.ffn,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": "gelu_new",
    }


def _write_llama(config: DecoderConfig) -> dict[str, Any]:
    biases = (config.attention_bias, config.output_bias, config.mlp_bias)
    qwen = biases == (True, False, False)
    if config.attention_bias != config.output_bias and not qwen:
        raise ConfigError(f"no Hugging Face model has the biases (qkv, output, mlp) = {biases}")
    fields = {
        "model_type": "qwen2" if qwen else "llama",
        "architectures": ["Qwen2ForCausalLM" if qwen else "LlamaForCausalLM"],
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rope_scaling": _write_scaling(config.rope_scaling),
    }
    return fields if qwen else fields | {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}


def _write_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original,
    }


def _divide(width: int, heads: int, width_name: str, heads_name: str) -> int:
    if heads < 1 or width % heads:
        raise ConfigError(f"{width_name} = {width} is not a multiple of {heads_name} = {heads}")
    return width // heads


def _ids(value: Any) -> tuple:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
