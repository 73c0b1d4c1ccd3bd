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
# # Compute: pipeline check

# %% tags=["parameters"]
samples: int = 1000
bits: list[int] = [2, 4, 8]
clip: float = 4.0

# %%
import numpy as np

from cachequant.study import results

# %%
folder = results.checkpoint("snr")
x = np.random.default_rng(0).standard_normal(samples)
snr = []
for b in bits:
    step = 2 * clip / 2**b
    q = (np.clip(np.floor(x / step), -(2 ** (b - 1)), 2 ** (b - 1) - 1) + 0.5) * step
    snr.append(10 * np.log10(np.mean(x**2) / np.mean((x - q) ** 2)))
snr

# %%
results.save({"rows": [{"bits": b, "snr_db": s} for b, s in zip(bits, snr, strict=True)]})
