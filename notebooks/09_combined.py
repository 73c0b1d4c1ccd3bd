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
# (compute-combined)=
# # Compute: both at once
#
# Number formats, page formats and prefix reuse together: whether their speed-ups multiply, and whether a prompt that is
# computed in two parts still gives the same logits.

# %% tags=["parameters"]
model: str = "smollm2-135m"
variants: list[str] = ["fp32", "bfp8", "int8", "fp32/k4v4", "bfp8/k4v4", "int8/k4v4"]  # scheme, or scheme/pages
sets: list[str] = ["high_reuse", "long_high_reuse", "no_reuse"]
new: int = 10  # tokens of each answer
repeats: int = 5  # rounds over each set
chunk_schemes: list[str] = ["fp32", "int8", "row-snap8", "row-snap4", "row-snap2", "bfp8-row", "int8-block32", "bfp8"]
splits: list[str] = ["9+2", "10+1"]  # tokens of a prompt, run in two parts
chunk_prompts: int = 24
products: list[str] = ["float32", "float64"]  # precision of torch's products of rounded values
change: float = 1e-6  # of the inputs whose codes are counted
threads: int = 0  # 0: one a physical core

# %%
import cachequant as cq
from cachequant import kernels
from cachequant.assets import models
from cachequant.study import chunking, combined, results, workloads

for name in sets:
    combined.check(variants, name, new)
chunking.check(chunk_schemes, splits, products)
loaded = cq.load(model, threads=threads or None)

# %% [markdown]
# Every variant with and without a prefix cache, request by request in turn.

# %%
measured = {name: combined.measure(loaded, variants, name, new, repeats) for name in sets}
{
    (name, variant): round(found["request_speed"]["kept"]["median"], 2)
    for name, bench in measured.items()
    for variant, found in bench["together"].items()
}

# %% [markdown]
# A prompt whole and in two parts: in this decoder, and in transformers with rounded linear layers.

# %%
prompts = {s: chunking.prompts(loaded, s, chunk_prompts) for s in splits}
rows = [
    {"engine": "cachequant", "scheme": name, "split": s} | chunking.compare(chunking.ours(scheme), prompts[s], s)
    for name in chunk_schemes
    for scheme in [loaded.with_scheme(name)]
    for s in splits
]

# %%
from cachequant.study.rounded_engine import Rounded

rounded = Rounded(models.resolve(model), kernels.get_threads())
for name in chunk_schemes:
    for precision in products:
        rounded.use(name, precision)
        for s in splits:
            found = chunking.compare(rounded.logits, prompts[s], s)
            rows.append({"engine": "transformers", "products": precision, "scheme": name, "split": s} | found)
[(r["engine"], r.get("products"), r["scheme"], r["split"], r["largest"], r["greedy_changes"]) for r in rows]

# %% [markdown]
# How many codes of a layer's inputs a tiny change of these inputs moves.

# %%
moved = chunking.moved_codes(loaded, workloads.LONG.ids(loaded.config.vocab, loaded.tokenizer), chunk_schemes, change)
moved

# %%
results.save({"sets": measured, "chunks": rows, "moved": moved}, models=[loaded])
