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
# (compute-kv)=
# # Compute: compressed keys and values
#
# What pages of codes cost in quality, and what they buy in memory and time.

# %% tags=["parameters"]
model: str = "smollm2-135m"
text: str = "auto"  # the first text that is there: WikiText-2 test, else the embedded extract
window: int = 1024  # tokens seen at once
max_tokens: int = 2048  # of the text, for the page formats
pages: list[str] = ["fp16", "int8", "k4v4", "k4v4/none", "k4v3", "k3v3", "mixed", "k2v2"]  # /none: without calibration
looked_at: list[str] = ["k4v4", "k3v3", "k2v2"]  # layer by layer, for needles and for greedy texts
gaussian_vectors: int = 4096
seen_tokens: int = 512  # whose keys and values are looked at
fit_tokens: int = 8192  # of the calibration text, for the bases of the ablation
stage_bits: list[int] = [4, 3, 2]  # of keys and values, for the ablation in NumPy
ablation: list[str] = [
    "k4v4+exact0/no-rotation+rms+coded",  # one part more in each row, up to the calibrated format
    "k4v4+exact0/rotation+rms+coded",
    "k4v4+exact0/rotation+coded",
    "k4v4+exact0/means+coded",
    "k4v4+exact0/means-balance+coded",
    "k4v4+exact0/means-feedback+coded",
    "k4v4+exact0/means-feedback",
    "k4v4/means-feedback",
    "k4v4+exact2/means-feedback",
    "k4v4/means-feedback+coded",  # from here on all parts but those that a row leaves out
    "k4v4/means-feedback+rms",
    "k4v4/means-balance",
    "k4v4/means",
    "k4v4/feedback",
    "k4v4/calibrated-unrotated",
    "k4v4/rotation",
    "k4v4/no-rotation",
]
ablation_tokens: int = 1024
sensitivity_bits: int = 2
sensitivity_layers: int = 30  # at most
sensitivity_tokens: int = 512
sparse_tokens: int = 2048
needle_lengths: list[int] = [2048]
needles: int = 8
prompts: int = 10  # greedy texts compared with fp32's
prompt_tokens: int = 256
new_tokens: int = 32
attention_arms: list[str] = ["sdpa-fp32", "kv-fp32", "kv-fp16", "kv-int8", "kv-k4v4", "kv-k3v3", "kv-k2v2"]
attention_contexts: list[int] = [64, 256, 1024, 4096, 8192]
attention_repeats: int = 3
earlier_arms: list[str] = ["sdpa-fp32", "sdpa-fp16", "kv-fp32", "kv-fp16", "kv-k4v4", "kv-k4v3", "kv-k4v2"]
decode_arms: list[str] = ["int8", "int8/k4v4"]
decode_contexts: list[int] = [64, 1024]
decode_repeats: int = 3
memory_contexts: list[int] = [256, 1024, 2048, 4096, 8192]
memory_tokens: int = 0  # of the session whose peak is measured; 0 leaves it out
memory_pages: list[str] = ["k4v4", "fp32"]
memory_chunks: list[int] = [256, 128]  # tokens prefilled at once; float32 pages take the first only

# %%
import cachequant as cq
from cachequant.assets import models, texts
from cachequant.study import (
    attention_bench,
    context_bench,
    distortion,
    divergence,
    encode_bench,
    kv_ablation,
    kv_layers,
    kv_rows,
    kv_vectors,
    needle,
    quality,
    quality_rows,
    results,
    session_memory,
    sparse_values,
    workloads,
)
from cachequant.study.steps import Steps

source = texts.default() if text == "auto" else texts.resolve(text)
float_model = cq.load(model)
config = float_model.config
names = kv_rows.names(pages)
steps = Steps(results.checkpoint("steps"))
gpt2 = models.resolve("gpt2-random")  # its shape: speed and memory

# %% [markdown]
# Perplexity, divergence and agreement of the page formats, each paired with float32 on the same windows.

# %%
folder = results.checkpoint("windows")
evaluation = quality.evaluate(float_model, names, source, max_tokens, window, folder)
rows = kv_rows.of(evaluation, config)
mixed = kv_rows.sides(kv_rows.model_of(float_model, "mixed").kv, config.layers) if "mixed" in pages else None
{name: row.get("delta_percent") for name, row in rows.items()}

# %% [markdown]
# The code on Gaussian vectors, against theory.

# %%
gaussian = steps.run("gaussian", distortion.gaussian, gaussian_vectors)
[(row["bits"], row["search"], row["lloyd_max"]) for row in gaussian]

# %% [markdown]
# Real keys and values before and after the rotation; the parts of the code one after the other.

# %%
study = kv_ablation.Ablated(float_model, fit_tokens)
ids = float_model.encode(source.text)
seen = kv_vectors.capture(float_model, ids[:seen_tokens])
shapes = steps.run("shapes", kv_vectors.shapes, seen, study.basis("means-feedback"))
stages = {
    f"k{bits}v{bits}": steps.run(f"stages-{bits}", kv_ablation.stages, study, seen, (bits, bits)) for bits in stage_bits
}
stages

# %% [markdown]
# The same parts in the decoder: perplexity.

# %%
ablated = quality.summarize(
    quality.evaluate(
        study,
        [f"{kv_rows.PREFIX}{name}" for name in ablation],
        source,
        ablation_tokens,
        window,
        results.checkpoint("ablation"),
    )
)
{name: row.get("delta_percent") for name, row in ablated.items()}

# %% [markdown]
# Layers: attention's output over codes against the exact one, and each side of each layer coded alone.

# %%
coded = {name: kv_rows.model_of(float_model, name) for name in looked_at}
cosines = {name: steps.run(f"cosine-{name}", kv_layers.output_cosine, other, seen) for name, other in coded.items()}
layers = min(sensitivity_layers, config.layers)
calibration = "/none" if all(name.endswith("/none") for name in pages if name != "fp16") else ""
single = [f"fp32/{kv}{calibration}" for kv in kv_layers.alone(layers, sensitivity_bits)]
sensitivity = kv_layers.sensitivity(
    quality.summarize(
        quality.evaluate(
            float_model,
            single,
            source,
            sensitivity_tokens,
            min(window, sensitivity_tokens),
            results.checkpoint("layers"),
        )
    ),
    layers,
    sensitivity_bits,
    calibration,
)
sensitivity

# %% [markdown]
# Sparse values, on the newest tokens of a longer text.

# %%
sparse = steps.run("sparse", lambda: sparse_values.measure(kv_vectors.capture(float_model, ids[:sparse_tokens])))
[(row["mass"], row["read"], row["error"]) for row in sparse]

# %% [markdown]
# Needles: numbers hidden in a long text, asked for at its end.

# %%
found = {}
for length in needle_lengths:
    hay, hidden = needle.haystack(float_model.tokenizer, ids, length, needles)
    for name in ["fp32", *looked_at]:
        other = coded.get(name, float_model)
        found.setdefault(name, {})[str(length)] = steps.run(f"needle-{length}-{name}", needle.ask, other, hay, hidden)
{name: {n: sum(a["found"] for a in answers) for n, answers in by.items()} for name, by in found.items()}

# %% [markdown]
# Greedy texts after prompts at fixed places of the text: how many tokens are float32's before the first that differs.

# %%
places = workloads.divergence_prompts(ids, prompts, prompt_tokens)
expected = [steps.run(f"greedy-fp32-{i}", divergence.greedy, float_model, p, new_tokens) for i, p in enumerate(places)]
greedy = {}
for name, other in coded.items():
    made = [steps.run(f"greedy-{name}-{i}", divergence.greedy, other, p, new_tokens) for i, p in enumerate(places)]
    greedy[name] = [quality_rows.agreed(t, e) for t, e in zip(made, expected, strict=True)]
greedy

# %% [markdown]
# Memory: counted, and measured in a fresh process.

# %%
kinds = ["fp32", *kv_rows.fixed(pages)]
memory = {
    asset.name: kv_rows.memory(asset.name, asset.config, kinds, kv_rows.longest(asset.config, memory_contexts))
    for asset in (float_model, gpt2)
}
peaks = [
    steps.run(f"peak-{kv}-{chunk}", session_memory.measure, kv, model, tokens=memory_tokens, chunk=chunk)
    for kv in memory_pages
    for chunk in (memory_chunks[:1] if kv == "fp32" else memory_chunks)
    if memory_tokens
]
[(peak["kv"], peak["chunk"], peak["bytes"]) for peak in peaks]

# %% [markdown]
# Attention of one decoded token against the context, in the shapes of two models and of the earlier project.

# %%
attention = {}
for asset in (float_model, gpt2):
    geometry = [getattr(asset.config, name) for name in attention_bench.GEOMETRY]
    attention[asset.name] = {
        str(n): steps.run(
            f"attention-{asset.name}-{n}",
            attention_bench.attention,
            attention_arms,
            context=n,
            repeats=attention_repeats,
            geometry=geometry,
        )
        for n in kv_rows.longest(asset.config, attention_contexts)
    }
earlier = steps.run(
    "attention-earlier",
    attention_bench.attention,
    earlier_arms,
    context=4096,
    repeats=attention_repeats,
    geometry=[1, 4, 4, 128],
)
{n: {arm: 1e3 / m["speed"]["median"] for arm, m in b["arms"].items()} for n, b in attention[float_model.name].items()}

# %% [markdown]
# The whole decoded token against the context, and what coding a token takes.

# %%
decode = steps.run("decode", context_bench.decode, decode_arms, model, decode_contexts, decode_repeats)
geometry = [getattr(config, name) for name in attention_bench.GEOMETRY]
encode = steps.run("encode", encode_bench.measure, kinds, geometry, basis=coded[looked_at[0]].pages.basis)
{n: b["ratios"] for n, b in decode.items()}

# %%
results.save(
    {
        "pages": rows,
        "mixed": mixed,
        "windows": evaluation["schemes"],
        "gaussian": gaussian,
        "shapes": shapes,
        "stages": stages,
        "ablation": ablated,
        "ablation_tokens": ablation_tokens,
        "cosines": cosines,
        "sensitivity": {"bits": sensitivity_bits, "tokens": sensitivity_tokens, "layers": sensitivity},
        "sparse": {"tokens": sparse_tokens, "masses": sparse},
        "needles": found,
        "greedy": {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "agreed": greedy},
        "memory": memory,
        "peaks": peaks,
        "attention": attention,
        "earlier": earlier,
        "decode": decode,
        "encode": encode,
    },
    models=[float_model, gpt2],
    texts=[source],
)
