"""Rows of the chapter on other engines, from its result (`profiles` has one workload a model)."""

from cachequant.study import speeds
from cachequant.study.results import Result

WORKLOAD = "prompt"
# arms of one engine that read float32 and 8-bit codes
PAIRS = {
    "PyTorch": ("transformers-fp32", "torch-int8"),
    "CTranslate2": ("ctranslate2-fp32", "ctranslate2-int8"),
    "llama.cpp": ("llamacpp-f32", "llamacpp-q8_0"),
    "this library": ("fp32", "int8+head"),
}
HOW = {  # engine, weights, their inputs, keys and values
    "transformers-fp32": ("transformers", "float32", "float32", "float32"),
    "torch-int8": ("transformers", "8 bits, one scale a matrix", "8 bits, a scale and zero point", "float32"),
    "ctranslate2-fp32": ("CTranslate2", "float32", "float32", "float32"),
    "ctranslate2-int8": ("CTranslate2", "8 bits, one scale a row", "8 bits, one scale a row", "float32"),
    "llamacpp-f32": ("llama.cpp", "float32", "float32", "float16"),
    "llamacpp-q8_0": ("llama.cpp", "8 bits, a scale a block of 32", "8 bits, a scale a block of 32", "float16"),
}


def bench(result: Result, model: str) -> dict:
    """The benchmark object of a model."""
    return result.data["profiles"][model][WORKLOAD]


def versions(result: Result) -> list[list[str]]:
    """[arm, engine and version, weights, inputs, keys and values] of every arm of other people that ran."""
    model = next(iter(result.data["profiles"]))
    found, engines = result.provenance["versions"], bench(result, model)["provenance"]["engines"]
    rows = []
    for arm, (engine, *kinds) in HOW.items():
        if arm in bench(result, model)["arms"]:
            version = engines[arm]["version"] if arm in engines else f"{found['transformers']}, torch {found['torch']}"
            rows.append([f"`{arm}`", f"{engine} {version}", *kinds])
    return rows


def builds(result: Result) -> dict[str, str]:
    """{engine: what it says of the instructions and libraries that it was built with}."""
    model = next(iter(result.data["profiles"]))
    return {e["name"]: e["build"] for e in bench(result, model)["provenance"]["engines"].values()}


def agreement(result: Result) -> list[dict]:
    """One row a model and arm: distance of its logits from ours in float32, and greedy tokens up to the first other."""
    rows = []
    for model, arms in result.data["agreement"].items():
        ids = {arm: runs[0]["ids"] for arm, runs in bench(result, model)["runs"].items() if runs}
        for arm, found in arms.items():
            same = agreeing(ids.get(arm, []), ids.get("fp32", []))
            rows.append({"model": speeds.title(result, model), "arm": arm, **found, "tokens": same})
    return rows


def agreeing(ids: list[int], others: list[int]) -> int:
    """Tokens before the first that differs."""
    pairs = zip(ids, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(others)))


def against(result: Result, arm: str) -> list[dict]:
    """One row a model and other engine's arm: how many times as fast `arm` is, in prefill and decode."""
    rows = []
    for model in result.data["profiles"]:
        ratios = bench(result, model)["ratios"]
        for peer in HOW:
            if (found := ratios.get(f"{arm}/{peer}")) and {"prefill_tok_s", "decode_tok_s"} <= found.keys():
                cells = {phase: found[f"{phase}_tok_s"] for phase in ("prefill", "decode")}
                rows.append({"model": speeds.title(result, model), "arm": peer, **cells})
    return rows


def contexts(result: Result, arm: str) -> list[dict]:
    """One row a context and arm: a decoded token in ms, MB of keys and values, and how many times as fast `arm` is."""
    rows = []
    for context, found in result.data.get("contexts", {}).items():
        for name, metrics in found["arms"].items():
            speed = metrics["speed"]
            ms = {"median": 1e3 / speed["median"], "low": 1e3 / speed["high"], "high": 1e3 / speed["low"]}
            ratio = found["ratios"].get(f"{arm}/{name}", {}).get("speed")
            mb = metrics["bytes"]["median"] / 1e6
            rows.append({"context": int(context), "arm": name, "ms": ms, "mb": mb, "times": ratio})
    return rows


def caches(result: Result) -> list[dict]:
    """One row a cache of transformers: divergence, bits, tokens seen exactly, storing a prompt, and speed.

    `more` is the divergence beyond that of our first cache of codes, `times` how many times as fast that one decodes.
    """
    found = result.data.get("caches")
    if not found:
        return []
    accuracy, rows = found["accuracy"], []
    ours = accuracy["ours"]
    for name, figures in accuracy["arms"].items():
        rows.append(
            {
                "arm": name,
                **{key: figures[key] for key in ("kl", "top1", "code_bits", "bits", "exact", "fill_seconds")},
                "more": accuracy["differences"].get(f"{name}/{ours}"),
                "tok_s": found["arms"].get(name, {}).get("decode_tok_s"),
                "times": found["ratios"].get(f"{ours}/{name}", {}).get("decode_tok_s"),
            }
        )
    return rows


def two_parts(result: Result) -> list[dict]:
    """One row a model and engine: a decoded token as bytes at a rate plus a rest, from its two formats.

    With t = bytes / rate + rest for both arms of a pair, two times and two sizes give the rate (GB/s) and the rest
    (ms). It is a model: it takes the engine to read codes as fast as it reads floats.
    """
    rows = []
    for model in result.data["profiles"]:
        found = {r["arm"]: r for r in speeds.reached(result) if r["model"] == speeds.title(result, model)}
        for engine, (plain, coded) in PAIRS.items():
            if plain not in found or coded not in found:
                continue
            (mb, ms), (mb8, ms8) = (
                (found[a]["mb"], 1000 / bench(result, model)["arms"][a]["decode_tok_s"]["median"])
                for a in (plain, coded)
            )
            rate = (mb - mb8) / (ms - ms8) if ms > ms8 else None  # MB a ms are GB a s
            rest = ms8 - mb8 / rate if rate else None
            row = {"model": speeds.title(result, model), "engine": engine, "ms": ms, "ms8": ms8}
            rows.append(row | {"rate": rate, "rest": rest, "share": rest / ms8 if rate else None})
    return rows
