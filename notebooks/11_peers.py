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
# (compute-peers)=
# # Compute: other engines
#
# This library beside the engines that people use on a CPU: the same weights, token ids and threads, all interleaved.

# %% tags=["parameters"]
models: list[str] = ["smollm2-135m", "gpt2-random"]
arms: list[str] = [
    "transformers-fp32",
    "torch-int8",
    "ctranslate2-fp32",
    "ctranslate2-int8",
    "llamacpp-f32",
    "llamacpp-q8_0",
    "fp32",
    "int8",
    "int8+head",
]
prompt: int = 270  # tokens
new: int = 40  # tokens after the prompt, the first by the prefill
repeats: int = 5
sweep_prompts: list[int] = [1, 4, 16, 64, 256, 512]  # tokens
sweep_new: int = 8  # tokens after each prompt of the sweep
sweep_repeats: int = 3
context_arms: list[str] = [
    "llamacpp-q8_0",
    "llamacpp-q8_0/f16",
    "llamacpp-q8_0/q8_0",
    "llamacpp-q8_0/q4_0",
    "int8+head",
    "int8+head/int8",
    "int8+head/k4v4",
]
contexts: list[int] = [1024, 4096]  # tokens before a decoded one, of the first model
context_repeats: int = 3
cache_model: str = "smollm2-135m"
caches: list[str] = [
    "hf-kv-dynamic",
    "hf-kv-k4v4",
    "hf-kv-k4v4/fp32/none",
    "hf-kv-k4v4,0-1:k8v8",
    "hf-quanto",
    "hf-hqq",
]
cache_text: str = "auto"  # the first text that is there: WikiText-2 test, else the embedded extract
cache_context: int = 1024  # tokens that are read back from the caches
cache_score: int = 96  # predictions behind them, in each window
cache_windows: int = 8
cache_repeats: int = 5  # of five decoded tokens, fewer in all than make QuantizedCache quantize everything again
check_prompt: int = 32  # tokens before the positions at which logits are compared
check_steps: int = 4
machine_repeats: int = 5
threads: int = 0  # 0: one a physical core

# %%
from cachequant.assets import texts
from cachequant.study import context_bench, hf_cache_bench, machine, results, traffic, workloads
from cachequant.study.agreement import agreement
from cachequant.study.arms import PEERS
from cachequant.study.decode_bench import DecodeBench
from cachequant.study.peer_files import EXPORTED

# %% [markdown]
# The roofs of this machine in the same run, because they drift.

# %%
work = {"prompt": workloads.Workload("prompt", workloads.LONG.text, prompt, new)}
roofs = machine.measure(threads or None, machine_repeats)

# %% [markdown]
# First whether all arms run the same model, then how fast. Arms whose engine is not installed are missing, with the
# reason, and the others go on. llama.cpp also reads the file of `cachequant export`, whose codes are those that our
# `q8_0+head` runs with.

# %%
assets, facts, measured, sweep, close, exported = [], {}, {}, {}, {}, {}
for model in models:
    with DecodeBench(model, arms, threads or None) as bench:
        asset = bench.asset
        close[asset.name] = agreement(bench, "fp32", check_prompt, check_steps)
        measured[asset.name] = {p: bench.measure(w, repeats=repeats) for p, w in work.items()}
        sweep[asset.name] = {str(n): bench.measure(n, sweep_new, sweep_repeats) for n in sweep_prompts}
    with DecodeBench(model, [EXPORTED, "llamacpp-export"], threads or None) as pair:
        exported[asset.name] = agreement(pair, EXPORTED, check_prompt, check_steps)
    reads = {a: traffic.weight_bytes(asset.config, a) for a in arms if a not in PEERS}
    facts[asset.name] = {"random": asset.random, "reads": reads, **traffic.shape(asset.config)}
    assets.append(asset)

# %%
{m: benches["prompt"]["provenance"]["missing"] for m, benches in measured.items()}

# %%
{
    (m, a): {metric: round(v[metric]["median"], 1) for metric in ("prefill_tok_s", "decode_tok_s")}
    for m in measured
    for a, v in measured[m]["prompt"]["arms"].items()
}

# %% [markdown]
# A decoded token in longer contexts, with llama.cpp's own quantized keys and values beside ours. Each context is
# computed once and decoding starts from it in every repetition.

# %%
long = context_bench.decode(context_arms, models[0], contexts, context_repeats, threads or None)
{n: {arm: round(1e3 / v["speed"]["median"], 1) for arm, v in b["arms"].items()} for n, b in long.items()}

# %% [markdown]
# transformers with caches of 4 bits, its own and ours, behind one float32 model: nothing but what is read back differs.

# %%
held = hf_cache_bench.compare(
    cache_model,
    caches,
    cache_context,
    cache_score,
    cache_windows,
    cache_repeats,
    texts.default().name if cache_text == "auto" else cache_text,
    threads or None,
)
held["provenance"]["missing"] | {
    arm: round(figures["kl"]["value"], 4) for arm, figures in held["accuracy"]["arms"].items()
}

# %%
results.save(
    {
        "machine": roofs,
        "models": facts,
        "workloads": work,
        "agreement": close,
        "exported": exported,
        "profiles": measured,
        "sweep": sweep,
        "contexts": long,
        "caches": held,
    },
    models=assets,
)
