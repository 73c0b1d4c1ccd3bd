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
# (compute-baseline)=
# # Compute: baseline
#
# transformers and this library in float32, prefill and decode apart, and the roofline of this machine.

# %% tags=["parameters"]
models: list[str] = ["smollm2-135m", "gpt2-random"]
arms: list[str] = ["transformers-fp32", "fp32"]
profiles: list[str] = ["short", "long"]
max_new: int = 50  # new tokens of a profile are cut to these
repeats: int = 5
sweep_prompts: list[int] = [8, 32, 128, 512]  # tokens
sweep_new: int = 8  # tokens decoded after each prompt of the sweep, the first by the prefill
sweep_repeats: int = 3
machine_repeats: int = 7
threads: int = 0  # 0: one a physical core

# %%
from dataclasses import replace

from cachequant.study import machine, results, traffic, workloads
from cachequant.study.decode_bench import DecodeBench
from cachequant.study.timing import PRICE

# %% [markdown]
# The two roofs: bytes a second out of memory, and operations a second in one large matrix product.

# %%
chosen = [workloads.PROFILES[p] for p in profiles]
work = {w.name: replace(w, new_tokens=min(max_new, w.new_tokens)) for w in chosen}
roofs = machine.measure(threads or None, machine_repeats)
{n: round(s["median"], 1) for n, s in (roofs["read_gb_s"] | roofs["gemm_gops"]).items()}

# %% [markdown]
# Both workloads and a sweep over prompt lengths, all arms interleaved in every repetition.

# %%
assets, facts, measured, sweep = [], {}, {}, {}
for model in models:
    with DecodeBench(model, arms, threads or None) as bench:
        asset = bench.asset
        measured[asset.name] = {p: bench.measure(w, repeats=repeats) for p, w in work.items()}
        sweep[asset.name] = {str(n): bench.measure(n, sweep_new, sweep_repeats) for n in sweep_prompts}
    reads = {scheme: traffic.weight_bytes(asset.config, scheme) for scheme in ("fp32", "int8", "int8+head")}
    facts[asset.name] = {"random": asset.random, "reads": reads, **traffic.shape(asset.config)}
    assets.append(asset)

# %%
{
    (m, p, a): round(v["decode_tok_s"]["median"], 1)
    for m in measured
    for p in profiles
    for a, v in measured[m][p]["arms"].items()
}

# %%
results.save(
    {
        "machine": roofs,
        "models": facts,
        "workloads": work,
        "price": PRICE,
        "profiles": measured,
        "sweep": sweep,
    },
    models=assets,
)
