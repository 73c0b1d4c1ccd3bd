"""Strict reading of a dictionary of options: each field is typed, known to be without effect, or refused by name."""

from collections.abc import Mapping
from typing import Any

from cachequant.errors import ConfigError

# Of training, of generation defaults, of storage and of bookkeeping: without effect on the logits of one forward pass.
_WITHOUT_EFFECT = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures
    attention_dropout attn_implementation attn_pdrop chunk_size_feed_forward dtype embd_pdrop finetuning_task
    gradient_checkpointing id2label initializer_range is_decoder is_llama_config keys_to_ignore_at_inference label2id
    max_window_layers model_type n_ctx num_labels output_attentions output_hidden_states output_past pad_token_id
    predict_special_tokens prefix pretraining_tp problem_type reorder_and_upcast_attn resid_pdrop return_dict
    sep_token_id summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    task_specific_params tokenizer_class torch_dtype torchscript transformers.js_config transformers_version
    unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
    diversity_penalty do_sample early_stopping length_penalty max_length min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences repetition_penalty temperature top_k top_p typical_p
    """.split()
)
MISSING = object()
_SWITCHED_OFF = (None, False, 0, 0.0, (), [], {}, "")


class Fields:
    """The dictionary, remembering which fields were read."""

    def __init__(self, fields: Mapping[str, Any], model_type: str):
        self._fields, self.model_type, self._read = dict(fields), model_type, set()

    def get(self, name: str, default: Any = MISSING) -> Any:
        self._read.add(name)
        value = self._fields.get(name)
        if value is not None:
            return value
        if default is MISSING:
            raise ConfigError(f"the {self.model_type} configuration lacks {name}")
        return default

    def has(self, name: str) -> bool:
        return name in self._fields

    def typed(self, name: str, kind: type | tuple[type, ...], words: str, default: Any = MISSING) -> Any:
        value = self.get(name, default)
        if value is default:
            return value
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{name} is {value!r}, it must be {words}")
        return value

    def integer(self, name: str, default: Any = MISSING) -> int:
        return self.typed(name, int, "an integer", default)

    def number(self, name: str, default: Any = MISSING) -> float:
        return float(self.typed(name, (int, float), "a number", default))

    def flag(self, name: str, default: bool) -> bool:
        return self.typed(name, bool, "true or false", default)

    def mapping(self, name: str) -> dict[str, Any]:
        return dict(self.typed(name, Mapping, "an object", {}))

    def require(self, name: str, allowed: tuple, default: Any = MISSING) -> None:
        value = self.get(name, default)
        if value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed)
            raise ConfigError(f"{name} is {value!r}, which the decoder does not handle; allowed: {choices}")

    def refuse_the_rest(self) -> None:
        for name, value in self._fields.items():
            if name in self._read or name in _WITHOUT_EFFECT or value in _SWITCHED_OFF:
                continue
            shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
            raise ConfigError(f"{name} is {shown}, a field of {self.model_type} that the decoder does not handle")
