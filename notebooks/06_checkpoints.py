# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,mystnb,-all
#     notebook_metadata_filter: kernelspec,-all
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# (compute-checkpoints)=
# # Compute: checkpoints
#
# File size, memory of a fresh process and speed of quantized checkpoints, and what a quantized head costs in quality.

# %% tags=["parameters"]
models: list[str] = ["gpt2-random", "smollm2-135m"]  # for size, memory and speed
configurations: list[str] = ["fp32", "int8", "int8+head:int8", "int8+head", "q8_0+head"]
prompt: int = 8
new_tokens: int = 24  # with and without cache
repeats: int = 5
conversions: list[str] = ["int8", "int8+head"]  # whose memory is measured, on the first model
quality_model: str = "smollm2-135m"
text: str = "auto"  # the first text that is there: WikiText-2 test, else the embedded extract
window: int = 512  # tokens seen at once
max_tokens: int = 2048  # of the text, for whole configurations
head_max_tokens: int = 2048  # for heads alone, whose effect is smaller

# %%
import tempfile
from pathlib import Path

import cachequant as cq
from cachequant.assets import models as assets
from cachequant.assets import texts
from cachequant.study import folding, footprint, paired, quality, results

HEADS = ["fp32+head:int8", "fp32+head"]
measured = [assets.resolve(name) for name in models]

# %% [markdown]
# Every configuration in a fresh process: file, memory above the base, tokens a second with and without cache.

# %%
footprints, converted = {}, {}
with tempfile.TemporaryDirectory(prefix="cachequant-") as folder:
    for name, asset in zip(models, measured, strict=True):
        footprints[asset.name] = footprint.measure(name, configurations, Path(folder), prompt, new_tokens, repeats)
    for scheme in conversions:
        converted[scheme] = footprint.conversion(models[0], scheme, Path(folder) / scheme)
{
    (m, n): (round(f["file_bytes"] / 1e6), round(f["above_bytes"] / 1e6))
    for m, found in footprints.items()
    for n, f in found["facts"].items()
}

# %% [markdown]
# Quality on a model with the gain of the final norm folded into an untied copy of the head: the same function, whose
# head lies on the grid of no format. First heads alone, then the configurations.

# %%
source = texts.default() if text == "auto" else texts.resolve(text)
plain = cq.load(quality_model)
model = folding.folded(assets.resolve(quality_model))
apart = folding.difference(plain, model, plain.encode(source.text[:2000])[:128])
apart

# %%
kept = results.checkpoint("windows")
head_evaluation = quality.evaluate(model, HEADS, source, head_max_tokens, window, kept)
heads = paired.summarize(head_evaluation)
{name: (row.get("delta_percent"), row.get("top1")) for name, row in heads.items()}

# %%
compared = [name for name in configurations if name != "fp32"]
evaluation = quality.evaluate(model, compared, source, max_tokens, window, kept)
rows = paired.summarize(evaluation)
{name: (row.get("delta_percent"), row.get("top1")) for name, row in rows.items()}

# %%
results.save(
    {
        "footprints": footprints,
        "random": {asset.name: asset.random for asset in measured},
        "conversions": {"model": measured[0].name, "schemes": converted},
        "folded": {"model": model.name, "difference": apart},
        "heads": heads,
        "head_windows": head_evaluation["schemes"],
        "head_tokens": head_max_tokens,
        "schemes": rows,
        "windows": evaluation["schemes"],
    },
    models=[*measured, model],
    texts=[source],
)
