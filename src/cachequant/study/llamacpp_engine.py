"""llama.cpp as an arm, through llama-cpp-python as its users have it; batch 1, logits of the last position.

Keys and values are float16, its default; the other arms keep float32.
"""

from pathlib import Path

import numpy as np

from cachequant.study import peer_files, peers

_CONTEXT = 512  # cells of its key-value cache are made in multiples of this
_SPARE = 128  # tokens more than a request needs, so that a longer one rarely makes a new context


class LlamaCpp:
    """A model out of a GGUF file with our weights.

    Parameters
    ----------
    model : a model's name.
    threads : for prompts and for single tokens.
    kind : ``f32`` or ``q8_0``, both of `cachequant.assets.gguf_write`.
    """

    def __init__(self, model: str, threads: int, kind: str):
        from cachequant.assets import models

        peers.require("llama_cpp")
        import llama_cpp

        asset = models.resolve(model)
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
        how = {"n_ctx": self._cells, "n_threads": self._threads, "n_threads_batch": self._threads, "verbose": False}
        self._llama = self._lib.Llama(str(self._file), **how)

    def start(self, ids: list[int]) -> np.ndarray:
        self._llama.reset()
        return self._eval(ids)

    def step(self, token: int) -> np.ndarray:
        return self._eval([token])

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
