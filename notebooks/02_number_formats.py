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
# (compute-formats)=
# # Compute: number formats
#
# What the 8-bit formats do to Gaussian numbers, to the weights of a model, and to what flows through it.

# %% tags=["parameters"]
model: str = "smollm2-135m"
text: str = "auto"  # the first text that is there: WikiText-2 test, else the embedded extract
tokens: int = 256  # of the text, run through the model
layers: int = 3  # blocks whose matrices and inputs are quantized in every format, evenly spaced; 0 for all
gaussian_rows: int = 128  # rows of each Gaussian matrix
seed: int = 0

# %%
import numpy as np

import cachequant as cq
from cachequant import schemes
from cachequant.assets import models, texts
from cachequant.study import formats, results, taps

asset = models.resolve(model)
config, source = asset.config, texts.default() if text == "auto" else texts.resolve(text)
chosen = np.linspace(0, config.layers - 1, layers or config.layers).round().astype(int)
quantizers = formats.all_formats()

# %% [markdown]
# One small group of values there and back, and what formats cost at the row lengths of GPT-2 small and of this model.

# %%
values = [1.5, -0.7, 0.2, -1.9]
example = {name: formats.worked_example(values, schemes.get(name).weight) for name in ("bfp8-row", "int8")}
lengths = sorted({768, config.width, config.ffn})
bits = {name: {str(k): q.bits_per_value(k, k) for k in lengths} for name, q in quantizers.items()}
example["bfp8-row"]["codes"], bits["block32-pow2"]["768"], bits["row-exact"]["768"]

# %% [markdown]
# Gaussian matrices whose standard deviations lie evenly over one octave, so that no rounding of scales is lucky.

# %%
rng = np.random.default_rng(seed)
octave = 2 ** (np.arange(8) / 8)
gaussian = {f"{s:.3f}": np.float32(s) * rng.standard_normal((gaussian_rows, 768), np.float32) for s in octave}
gaussian_crest = float(np.mean([formats.outliers(x)["crest"] for x in gaussian.values()]))
kinds = {"gaussian": formats.sweep(gaussian, quantizers)}

# %% [markdown]
# The matrices of some blocks, whole.

# %%
names = [f"{n}.weight" for n in config.linear_names() if int(n.split(".")[1]) in chosen]
kinds["weights"] = formats.sweep({n: asset.weights[n] for n in names}, quantizers)

# %% [markdown]
# The inputs of the linear layers while the model reads a text; every format is tried on those of the same blocks.

# %%
float_model = cq.load(model)
inputs = taps.capture(float_model, float_model.encode(source.text[: 20 * tokens])[:tokens])
kinds["activations"] = formats.sweep({f"{i}.{site}": x for (i, site), x in inputs.items() if i in chosen}, quantizers)

# %% [markdown]
# Outliers: how far the largest values of each input and each matrix stand out, and which columns hold them.

# %%
profiles, outliers = {}, []
for (layer, site), x in inputs.items():
    found = formats.outliers(x)
    profiles.setdefault(site, {})[layer] = found.pop("channel_maxima")
    outliers.append({"layer": layer, "site": site, **found})
for site, by_layer in profiles.items():  # of the block where they stand out most
    loudest = max((r for r in outliers if r["site"] == site), key=lambda r: r["crest"])["layer"]
    profiles[site] = {"layer": loudest, "maxima": by_layer[loudest]}
weight_outliers = []
for n in config.linear_names():
    found = formats.outliers(asset.weights[f"{n}.weight"])
    weight_outliers.append({"matrix": n, **{k: found[k] for k in ("kurtosis", "max_over_median", "crest")}})

# %% [markdown]
# What a coarse scale costs against an exact one in blocks of 32, measured and expected.

# %%
costs = []
for steps in (1, 2, 4, 8):
    rule = schemes.ScaleRule(steps).name
    lost = {kind: formats.rule_loss(sweep["formats"], rule) for kind, sweep in kinds.items()}
    costs.append({"rule": rule, "expected_db": formats.rule_cost_db(steps), **lost})
costs

# %% [markdown]
# Where the numbers of this checkpoint come from: distinct values in blocks of 32 show the codes it was stored in.

# %%
embedding, downs = asset.weights["embed.weight"], [asset.weights[n] for n in names if n.endswith("down.weight")]
origin = {
    "weights": formats.distinct_in_blocks(np.concatenate(downs)),
    "embedding": formats.distinct_in_blocks(embedding),
    "reproduced": {name: formats.reproduced(embedding, q) for name, q in schemes.HEADS.items()},
}
origin

# %%
results.save(
    {
        "example": example,
        "bits": bits,
        "kinds": kinds,
        "gaussian_crest": gaussian_crest,
        "outliers": outliers,
        "weight_outliers": weight_outliers,
        "profiles": profiles,
        "costs": costs,
        "origin": origin,
    },
    models=[asset],
    texts=[source],
)
