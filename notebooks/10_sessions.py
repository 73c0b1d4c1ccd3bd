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
# (compute-sessions)=
# # Compute: sessions
#
# Branches, rewinds, replays and snapshots of a session: what each costs by tokens and page format, and whether it
# changes a bit.

# %% tags=["parameters"]
model: str = "smollm2-135m"
scheme: str = "int8"
formats: list[str] = ["fp32", "int8", "k4v4"]  # of pages
tokens: list[int] = [276, 1000, 5000]  # of a session; each has to leave a part of a page of 32
repeats: int = 15  # rounds of branches and rewinds
long_repeats: int = 3  # rounds of prefill, save and load
branch_tokens: int = 270  # of the session that is branched into several answers
branch_counts: list[int] = [1, 2, 4, 8]
branch_new: int = 24  # tokens of each answer
temperature: float = 0.8
replayed: list[str] = ["int8", "int8/int8", "int8/k4v4", "bfp8", "fp32"]  # who answers, and replays the others' answers
replay_prompt: int = 40
replay_new: int = 64
threads: int = 0  # 0: one a physical core

# %%
import tempfile
from pathlib import Path

import cachequant as cq
from cachequant.study import replays, results, variants, workloads
from cachequant.study.session_costs import SessionCosts, places

for n in tokens:
    places(n)
for name in replayed:
    variants.get(name)
loaded = cq.load(model, scheme, threads=threads or None)
ids = workloads.prompt_ids(max(*tokens, branch_tokens, replay_prompt) + 2, loaded.config.vocab, loaded.tokenizer)
folder = tempfile.TemporaryDirectory()

# %% [markdown]
# Cost by length and page format, all formats in turn.

# %%
costs = SessionCosts(loaded, formats, ids, Path(folder.name))
measured = {str(n): costs.measure(n, repeats, long_repeats) for n in tokens}
{(n, f): found["snapshot"]["against_prefill"]["median"] for n, row in measured.items() for f, found in row.items()}

# %% [markdown]
# What branches of one session share.

# %%
shared = {
    name: {
        str(n): replays.branches(loaded.with_kv(name), ids[:branch_tokens], n, branch_new, temperature)
        for n in branch_counts
    }
    for name in formats
}
{(f, n): found["separate_bytes"] / found["shared_bytes"] for f, row in shared.items() for n, found in row.items()}

# %% [markdown]
# Replays: greedy, and with a seed.

# %%
prompt = ids[:replay_prompt]
repeated = {
    "greedy": replays.across(loaded, replayed, prompt, replay_new, Path(folder.name)),
    "drawn": replays.across(loaded, replayed, prompt, replay_new, Path(folder.name), temperature=temperature, seed=1),
}
folder.cleanup()
repeated

# %%
results.save({"costs": measured, "branches": shared, "replays": repeated}, models=[loaded])
