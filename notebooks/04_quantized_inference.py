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
# (compute-quantized)=
# # Compute: quantized inference
#
# Every format end to end: prefill, decode and cost on two workloads and two models, and against the prompt's length.

# %% tags=["parameters"]
models: list[str] = ["smollm2-135m", "gpt2-random"]
arms: list[str] = [
    "transformers-fp32",
    "torch-int8",
    "fp32",
    "bfp8",
    "int8",
    "w8a12",
    "int8-hadamard",
    "int8+head",
]
profiles: list[str] = ["short", "long"]
max_new: int = 50  # new tokens of a profile are cut to these
repeats: int = 5
half_arms: list[str] = [
    "transformers-fp32",
    "transformers-bf16",
    "transformers-fp16",
]  # run once, stopped after a while
half_profiles: list[str] = ["short", "long"]
half_new: int = 50  # at most so many tokens from the 16-bit float arms
sweep_prompts: list[int] = [8, 32, 128, 512]  # tokens
sweep_new: int = 8  # tokens decoded after each prompt of the sweep, the first by the prefill
sweep_repeats: int = 3
stage_scheme: str = "int8+head"  # whose forward pass is taken apart
stage_prompt: int = 270
stage_new: int = 12
stage_repeats: int = 3
prefill_arms: list[str] = ["fp32", "int8"]
long_prompts: list[int] = [512, 4096, 8128]  # tokens
short_prompts: list[int] = [1, 2, 4, 8, 16, 32]  # also decoded token by token
tile_prompts: list[int] = [1, 5, 6, 7, 11, 12, 13, 17, 18, 19, 23, 24, 25, 31, 32, 33]  # both sides of tiles' edges
memory_prompts: list[int] = [512, 1024, 2048, 4096, 8128]  # each in a fresh process
prefill_repeats: int = 3
scaling_arms: list[str] = ["fp32", "int8", "int8+head"]
scaling_prompt: int = 270
scaling_new: int = 16
scaling_repeats: int = 3
machine_repeats: int = 5
threads: int = 0  # 0: one a physical core

# %%
from dataclasses import replace

from cachequant.study import bench as benches
from cachequant.study import breakdown, machine, results, scaling, traffic, workloads
from cachequant.study.arms import PEERS
from cachequant.study.decode_bench import DecodeBench
from cachequant.study.prefill_bench import Work
from cachequant.study.timing import PRICE

# %% [markdown]
# The roofs of this machine in the same run, because they drift.

# %%
chosen = [workloads.PROFILES[p] for p in profiles]
work = {w.name: replace(w, new_tokens=min(max_new, w.new_tokens)) for w in chosen}
roofs = machine.measure(threads or None, machine_repeats)

# %% [markdown]
# The formats of this library beside transformers and torch's dynamic int8, interleaved.

# %%
assets, facts, measured, sweep = [], {}, {}, {}
for model in models:
    with DecodeBench(model, arms, threads or None) as bench:
        asset = bench.asset
        measured[asset.name] = {p: bench.measure(w, repeats=repeats) for p, w in work.items()}
        sweep[asset.name] = {str(n): bench.measure(n, sweep_new, sweep_repeats) for n in sweep_prompts}
    reads = {a: traffic.weight_bytes(asset.config, a) for a in arms if a not in PEERS}
    facts[asset.name] = {"random": asset.random, "reads": reads, **traffic.shape(asset.config)}
    assets.append(asset)

# %% [markdown]
# 16-bit floats through torch, in a run of their own: they are slow where the CPU has no instructions for them.

# %%
half = {}
for model in models:
    with DecodeBench(model, half_arms, threads or None) as bench:
        new = {p: min(half_new, w.new_tokens) for p, w in work.items()}
        half[bench.asset.name] = {p: bench.measure(work[p], new[p], repeats=1) for p in half_profiles}

# %% [markdown]
# Where the time of a pass goes, kernel by kernel, and what is left of it when all blocks are one parallel region.

# %%
apart = breakdown.profile(models[0], stage_scheme, stage_prompt, stage_new, stage_repeats, threads or None)
{phase: round(1e3 * apart[phase]["seconds"]["median"], 2) for phase in ("prefill", "decode")}

# %% [markdown]
# Long prompts and short ones: tokens a second, attention apart, peak memory, and short prompts token by token.

# %%
lengths = Work(long_prompts, short_prompts, tile_prompts, memory_prompts)
prompts = benches.prefill(prefill_arms, models[0], lengths, prefill_repeats, threads or None)
{(n, a): round(v["prefill_tok_s"]["median"]) for n, by in prompts["long"].items() for a, v in by.items()}

# %% [markdown]
# From one thread to all of them.

# %%
scaled = scaling.measure(scaling_arms, models[0], scaling_prompt, scaling_new, scaling_repeats, threads or None)

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
        "half": half,
        "sweep": sweep,
        "stages": apart,
        "prompts": prompts,
        "scaling": scaled,
    },
    models=assets,
)
