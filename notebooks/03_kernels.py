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
# (compute-kernels)=
# # Compute: kernels
#
# Matrix products alone: from a triple loop to SIMD, our kernels beside torch's, and what each one waits for.

# %% tags=["parameters"]
arms: list[str] = ["torch-fp32", "torch-int8", "fp32", "bfp8", "int8"]
rows: int = 270  # tokens of the large products
repeats: int = 7
ladder_shape: list[int] = [3072, 576]  # outputs, inputs; has to be one of the shapes of the comparison
ladder_repeats: int = 5
placement_rows: list[int] = [1, 2, 4, 8, 16, 32, 64, 128, 270]
placement_repeats: int = 5
machine_repeats: int = 7
threads: int = 0  # 0: one a physical core

# %%
from cachequant.kernels import cpu, selfcheck, set_threads
from cachequant.study import assembly, bench, ladder_bench, machine, results

threads = set_threads(threads or None)
stream_bytes = 2 * cpu.last_level_bytes()  # what a decoded token reads has left the cache before its next turn

# %% [markdown]
# The roofs of this machine.

# %%
roofs = machine.measure(threads or None, machine_repeats)

# %% [markdown]
# The matrices of both models, all arms interleaved: many tokens, one token with weights out of memory, and the same out
# of the cache.

# %%
compared = bench.gemm(arms, rows=rows, repeats=repeats, threads=threads)
{arm: {k: round(v["median"], 2) for k, v in found.items()} for arm, found in compared["arms"].items()}

# %% [markdown]
# The ladder: the same integers by a triple loop, a blocked one, and SIMD kernels of ever stronger instructions; for
# many tokens, and for one token with weights out of memory.

# %%
n, k = ladder_shape
rungs = {
    str(tokens): ladder_bench.rungs(n, k, tokens, stream_bytes if tokens == 1 else 0, ladder_repeats)
    for tokens in (rows, 1)
}
{name: round(found["median"], 4) for name, found in rungs[str(rows)].items()}

# %% [markdown]
# Stages of one product: quantizing the inputs, multiplying, rescaling.

# %%
stages = {
    str(tokens): ladder_bench.stages(n, k, tokens, ["int8", "bfp8"], stream_bytes if tokens == 1 else 0, ladder_repeats)
    for tokens in (1, rows)
}

# %% [markdown]
# From one token to many: where a product stops waiting for memory.

# %%
points = ladder_bench.placement(n, k, placement_rows, ["fp32", "bfp8", "int8"], stream_bytes, placement_repeats)

# %%
results.save(
    {
        "machine": roofs,
        "kernel_set": selfcheck.active().name,
        "compared": compared,
        "ladder": rungs,
        "ladder_shape": {"n": n, "k": k, "rows": rows},
        "assembly": assembly.listings(),
        "stages": stages,
        "placement": points,
    }
)
