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
# (compute-prefix)=
# # Compute: prefix cache
#
# What it buys to keep the keys and values of earlier prompts and answers: on prompts that share their beginning or do
# not, in conversations, under a budget; and what it costs in time and bytes.

# %% tags=["parameters"]
models: list[str] = ["smollm2-135m", "gpt2-random"]  # one-shot sets; the first one for everything else
scheme: str = "fp32"
sets: list[str] = ["high_reuse", "long_high_reuse", "no_reuse"]
repeats: int = 5
pairs: int = 50  # rounds of no_reuse, whose difference is small
dialogues: list[str] = ["france", "python", "history"]
turns: int = 8
turn_repeats: int = 3
all_sets: list[str] = ["high_reuse", "long_high_reuse"]  # measured with the logits of all positions too
all_repeats: int = 3
all_turns: bool = True  # conversations with the logits of all positions too
all_turn_repeats: int = 1
prefixes: list[int] = [0, 4, 8, 16, 32, 64, 128, 256, 512]  # tokens shared, for the break-even
prefix_repeats: int = 5
example_model: str = "smollm2-135m"  # whose tokenizer and pages the example and the counts of bytes have
formats: list[str] = ["fp32", "fp16", "int8", "k4v4", "k3v3"]
lengths: list[int] = [32, 256, 276, 1024, 8128]  # tokens
budget_mb: int = 100  # how many tokens it holds
stream_formats: list[str] = ["fp32", "int8", "k4v4"]
stream_budgets_mb: list[int] = [32, 64, 128, 256]
stream_requests: int = 400
tree_sizes: list[int] = [1000, 10000, 100000, 1000000]  # pages
tree_inserts: int = 5000
stress_schemes: list[str] = ["fp32", "bfp8", "int8"]
stress_new: int = 200  # tokens of the longest generation
threads: int = 0  # 0: one a physical core

# %%
import cachequant as cq
from cachequant.assets import models as assets
from cachequant.study import break_even, conversations, eviction, growth, mixed, prefix_bench, results, storage, stress

main, *others = [cq.load(name, scheme, threads=threads or None) for name in models]

# %% [markdown]
# How the tree of pages grows, on a story of which several versions are asked for.

# %%
example = assets.resolve(example_model)
tree = growth.grow(example)
[(step.prompt, step.matched, step.inserted, step.evicted) for step in tree]

# %% [markdown]
# One-shot sets: five prompts each, a fresh cache for every round, last-position logits in all arms.

# %%
one_shot = {
    model.name: {s: prefix_bench.measure({"": model}, s, repeats=pairs if s == "no_reuse" else repeats) for s in sets}
    for model in (main, *others)
}
{
    (m, s): round(bench["ratios"]["cache/no-cache"]["speed"]["median"], 3)
    for m, found in one_shot.items()
    for s, bench in found.items()
}

# %% [markdown]
# Conversations: every turn's prompt is everything said so far.

# %%
talks = conversations.SETS["multi_turn"].part(dialogues, turns)
multi_turn = prefix_bench.measure({"": main}, talks, repeats=turn_repeats)
[(row["turn"], round(row["hit_rate"], 3)) for row in multi_turn["turns"]]

# %% [markdown]
# The same with the logits of all positions, as the earlier study measured.

# %%
all_positions = {s: prefix_bench.measure({"": main}, s, repeats=all_repeats, logits="all") for s in all_sets}
if all_turns:
    all_positions["multi_turn"] = prefix_bench.measure({"": main}, talks, repeats=all_turn_repeats, logits="all")

# %% [markdown]
# From which length of the shared prefix on a cache pays.

# %%
even = break_even.measure(main, prefixes, repeats=prefix_repeats)
{row["prefix"]: round(row["ratios"]["cache/no-cache"]["speed"]["median"], 2) for row in even}

# %% [markdown]
# Bytes: of a cached token by page format and length, and what a budget holds.

# %%
shapes = {asset.name: asset for asset in (example, *(assets.resolve(name) for name in models))}
stored = {
    name: {"token_bytes": storage.token_bytes(asset), "rows": storage.by_length(asset, formats, lengths)}
    for name, asset in shapes.items()
}
budget = budget_mb * 1_000_000
held = [
    {"kv": kv, "shared": shared, "tokens": storage.capacity(example, kv, budget, shared=shared)}
    for kv in formats
    for shared in (0, 32)
]
stream = mixed.measure(example, stream_formats, stream_budgets_mb, stream_requests)
tree_bytes = storage.tree_bytes()

# %% [markdown]
# Eviction: the cost of storing a page when another one has to go.

# %%
evicted = eviction.measure(tree_sizes, tree_inserts)
[(row["pages"], row["touched"], round(row["microseconds"]["median"], 1)) for row in evicted]

# %% [markdown]
# What a user can get wrong, and what pushes a cache to its limit.

# %%
stressed = stress.measure(main, stress_schemes, stress_new)
sum(row["right"] for row in stressed), len(stressed)

# %%
results.save(
    {
        "scheme": scheme,
        "random": {model.name: model.random for model in (main, *others)},
        "tree": tree,
        "one_shot": one_shot,
        "multi_turn": multi_turn,
        "all_positions": all_positions,
        "break_even": even,
        "example": example.name,
        "storage": stored,
        "capacity": {"budget_mb": budget_mb, "rows": held},
        "stream": stream,
        "tree_bytes": tree_bytes,
        "eviction": evicted,
        "stress": stressed,
    },
    models=[main, *others],
)
