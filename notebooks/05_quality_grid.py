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
# (compute-quality)=
# # Compute: quality of the formats
#
# What each scheme costs in perplexity, agreement and greedy text, and which part of it costs that.

# %% tags=["parameters"]
model: str = "smollm2-135m"
text: str = "auto"  # the first text that is there: WikiText-2 test, else the embedded extract
window: int = 512  # tokens seen at once
max_tokens: int = 2048  # of the text, for the schemes
schemes: list[str] = [
    "int8-tensor-w",
    "int8-tensor",
    "w8",
    "bfp8-w",
    "int8+head:int8",
    "int8+head",
    "w8a12",
    "w8a16",
    "int8-x128",
    "int8-x64",
    "int8-x32",
    "int8-hadamard",
    "int8-hadamard-x128",
    "int8-smooth",
]  # beside the 2x2 grid
fine_max_tokens: int = 1024  # for the grid of 35
granularities: list[str] = ["tensor", "row", "block256", "block128", "block64", "block32", "block16"]  # of the grid
cause_max_tokens: int = 1024  # for weights and inputs rounded apart
prompts: int = 20  # greedy texts compared with fp32's
new_tokens: int = 32
greedy_schemes: list[str] = ["int8-block32", "w8", "int8+head"]  # beside int8 and bfp8
speed_prompt: int = 128
speed_new: int = 8
speed_repeats: int = 3

# %%
import cachequant as cq
from cachequant.assets import texts
from cachequant.study import causes, divergence, quality, quality_rows, results, scheme_speed, workloads

source = texts.default() if text == "auto" else texts.resolve(text)
float_model = cq.load(model)
folder = results.checkpoint("windows")
compared = list(dict.fromkeys([*quality_rows.TWO_BY_TWO, *schemes]))

# %% [markdown]
# Perplexity, divergence and agreement of the schemes, each paired with float32 on the same windows.

# %%
evaluation = quality.evaluate(float_model, compared, source, max_tokens, window, folder)
rows = quality_rows.of(evaluation, float_model.config)
{name: row.get("delta_percent") for name, row in rows.items()}

# %% [markdown]
# The grid: every granularity with every scale rule, on fewer tokens; schemes scored above are not scored again.

# %%
names = quality_rows.grid_names(granularities)
fine_evaluation = quality.evaluate(float_model, list(names.values()), source, fine_max_tokens, window, folder)
scored = quality_rows.of(fine_evaluation, float_model.config)
fine = {cell: {**scored[name], "scheme": cell} for cell, name in names.items()}
len(fine)

# %% [markdown]
# Causes: only weights rounded, only the inputs of linear layers, only some of these inputs.

# %%
study = causes.Causes(float_model)
cause_folder = results.checkpoint("causes")
cause_evaluation = quality.evaluate(study, study.schemes, source, cause_max_tokens, window, cause_folder)
apart = causes.rows(quality.summarize(cause_evaluation))
{label: row["delta_percent"] for label, row in apart.items()}

# %% [markdown]
# Greedy texts after prompts at fixed places of the text: how many tokens are float32's before the first that differs.

# %%
ids = float_model.encode(source.text)
places = workloads.divergence_prompts(ids, prompts)
expected = [divergence.greedy(float_model, p, new_tokens) for p in places]
greedy = {}
for name in dict.fromkeys(["int8", "bfp8", *greedy_schemes]):
    other = float_model.with_scheme(name)
    found = [divergence.greedy(other, p, new_tokens) for p in places]
    greedy[name] = [quality_rows.agreed(t, e) for t, e in zip(found, expected, strict=True)]
greedy

# %% [markdown]
# Speed of the same schemes, interleaved in this process, for the charts that set quality against it.

# %%
speed = scheme_speed.measure(float_model, ["fp32", *compared], speed_prompt, speed_new, speed_repeats)
{name: metrics["decode_tok_s"]["median"] for name, metrics in speed["arms"].items()}

# %%
results.save(
    {
        "schemes": rows,
        "windows": evaluation["schemes"],
        "fine": fine,
        "fine_tokens": fine_max_tokens,
        "causes": apart,
        "cause_tokens": cause_max_tokens,
        "greedy": {"new_tokens": new_tokens, "agreed": greedy},
        "speed": speed,
    },
    models=[float_model],
    texts=[source],
)
