"""Keys and values: page formats, the pool, sessions, the prefix cache, and attention without a model."""


def __getattr__(name: str):
    if name == "Attention":  # not imported before it is asked for: it brings the kernels
        from cachequant.kv.attention import Attention

        return Attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
