"""llama.cpp as an arm, through llama-cpp-python as its users have it; batch 1, logits of the last position.

Keys and values are float16, its default, or in one of `PAGES`, which it reads with flash attention.
"""

from pathlib import Path

import numpy as np

from cachequant.errors import InputError
from cachequant.study import peer_files, peers

# ggml's types of keys and values: name of the constant, values of a block, bytes of it
PAGES = {"f16": ("GGML_TYPE_F16", 1, 2), "q8_0": ("GGML_TYPE_Q8_0", 32, 34), "q4_0": ("GGML_TYPE_Q4_0", 32, 18)}
_CONTEXT = 512  # cells of its key-value cache are made in multiples of this
_SPARE = 128  # tokens more than a request needs, so that a longer one rarely makes a new context


class LlamaCpp:
    """A model out of a GGUF file with our weights.

    Parameters
    ----------
    model : a model's name.
    threads : for prompts and for single tokens.
    kind : ``f32``, ``q8_0`` or ``export``, see `peer_files`.
    pages : of `PAGES`, with flash attention, which a quantized V needs; None is the default, ``f16`` without it.

    Raises
    ------
    AssetError : llama-cpp-python is not installed.
    InputError : heads that are no whole blocks of the pages.
    """

    def __init__(self, model: str, threads: int, kind: str, pages: str | None = None):
        from cachequant.assets import models

        peers.require("llama_cpp")
        import llama_cpp

        asset = models.resolve(model)
        config, (name, block, size) = asset.config, PAGES[pages or "f16"]
        if config.head_dim % block:
            raise InputError(f"heads of {config.head_dim} values are no whole blocks of {pages}, which has {block}")
        self._token_bytes = 2 * config.layers * config.kv_width // block * size
        kind_of = getattr(llama_cpp, name)
        self._how = {"type_k": kind_of, "type_v": kind_of, "flash_attn": pages is not None}
        self._file = peer_files.make(asset, f"gguf-{kind}")
        self._lib, self._threads, self._vocab = llama_cpp, threads, asset.config.vocab
        self._llama, self._cells = None, 0
        self.reserve(1)
        self.weight_bytes = streamed_bytes(self._file)
        self.engine = {
            "name": "llama.cpp",
            "version": f"(llama-cpp-python {llama_cpp.__version__})",
            "build": llama_cpp.llama_print_system_info().decode().strip(" |"),
        }

    def reserve(self, tokens: int) -> None:
        """Make room for so many tokens; a user chooses the size of the context when the model is loaded."""
        if tokens <= self._cells:
            return
        if self._llama is not None:
            self._llama.close()
        self._cells = -(-(tokens + _SPARE) // _CONTEXT) * _CONTEXT
        threads = {"n_threads": self._threads, "n_threads_batch": self._threads}
        self._llama = self._lib.Llama(str(self._file), n_ctx=self._cells, verbose=False, **threads, **self._how)

    def start(self, ids: list[int]) -> np.ndarray:
        self._llama.reset()
        return self._eval(ids)

    def step(self, token: int) -> np.ndarray:
        return self._eval([token])

    def grow(self, ids: list[int]) -> None:
        self._llama.eval(ids)

    def rewind(self, tokens: int) -> None:
        self._llama.n_tokens = tokens  # the next call forgets what is behind

    def held_bytes(self) -> int:
        """Bytes of the keys and values of the tokens so far; cells that are free are not counted."""
        return self._llama.n_tokens * self._token_bytes

    def _eval(self, ids: list[int]) -> np.ndarray:
        self._llama.eval(ids)
        last = self._lib.llama_get_logits_ith(self._llama.ctx, -1)
        return np.ctypeslib.as_array(last, shape=(self._vocab,))  # theirs, until the next call

    def choose(self, logits: np.ndarray) -> int:
        return int(logits.argmax())


def streamed_bytes(file: Path) -> int:
    """Bytes of the tensors in a GGUF file that one decoded token reads: all but embeddings, with the head once."""
    import gguf

    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(file).tensors}
    unread = {"position_embd.weight"} | ({"token_embd.weight"} if "output.weight" in sizes else set())
    return sum(size for name, size in sizes.items() if name not in unread)
