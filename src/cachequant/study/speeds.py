"""Rows and titles that the speed chapters make from their results; a result has `profiles`, `models` and `machine`."""

from collections.abc import Collection

from cachequant.study import traffic
from cachequant.study.results import Result

METRICS = ("prefill_tok_s", "decode_tok_s", "latency_p50_ms", "latency_p90_ms", "cost_per_thousand")


def title(result: Result, model: str) -> str:
    """A model's name, marked where its weights are random."""
    return model + " (random weights)" * result.data["models"][model]["random"]


def workload_title(result: Result, workload: str) -> str:
    """``short, 8 + 50``: tokens of the prompt and new ones."""
    work = result.data["workloads"][workload]
    return f"{workload}, {work['prompt_tokens']} + {work['new_tokens']}"


def benches(result: Result, model: str) -> dict:
    """{title of model and workload: benchmark object}, for the figures of one model."""
    name = title(result, model)
    return {f"{name}, {workload_title(result, w)}": b for w, b in result.data["profiles"][model].items()}


def rows(result: Result) -> list[dict]:
    """One row a model, workload and arm, with the benchmark's metrics."""
    return [
        {"model": title(result, m), "workload": w, "arm": a, **{k: found.get(k) for k in METRICS}}
        for m, profiles in result.data["profiles"].items()
        for w, bench in profiles.items()
        for a, found in bench["arms"].items()
    ]


def bandwidth(result: Result) -> float:
    """GB/s of reading memory with the threads that the arms had."""
    machine = result.data["machine"]
    return machine["read_gb_s"][str(machine["threads"])]["median"]


def roofs(result: Result) -> list[dict]:
    """Bandwidth by threads and peaks by library, as rows."""
    machine = result.data["machine"]
    reading = [
        {"what": f"reading memory, {n} thread{'s' * (n != '1')}, GB/s", "value": v}
        for n, v in machine["read_gb_s"].items()
    ]
    peaks = [
        {"what": f"multiplying registers, {a}, GOP/s", "value": v} for a, v in machine.get("register_gops", {}).items()
    ]
    return [
        *reading,
        *peaks,
        *({"what": f"large matrix product, {a}, GOP/s", "value": v} for a, v in machine["gemm_gops"].items()),
    ]


def reached(result: Result, arms: Collection[str] | None = None) -> list[dict]:
    """One row a model, workload and arm: bytes a token, and how near decode and prefill come to the roofs.

    `read` is the share of the read bandwidth; `peak` the share of torch's float32 peak for arms on torch, of our own
    peak for the others, in float32 or for codes.
    """
    peaks, found = result.data["machine"]["gemm_gops"], []
    for model, profiles in result.data["profiles"].items():
        for workload, bench in profiles.items():
            for arm in [a for a in bench["arms"] if a in bench["facts"] and (arms is None or a in arms)]:
                row = traffic.reached(result.data["models"][model], bench, arm)
                own = "fp32" if arm.endswith(("fp32", "f32")) else "int8"
                roof = "torch-fp32" if arm.startswith(("transformers", "torch")) else own
                found.append(
                    {
                        "model": title(result, model),
                        "workload": workload,
                        "arm": arm,
                        "mb": row["bytes"] / 1e6,
                        "gb_s": row["decode_gb_s"],
                        "read": row["decode_gb_s"] / bandwidth(result),
                        "gops": row["prefill_gops"],
                        "peak": row["prefill_gops"] / peaks[roof]["median"] if roof in peaks else None,
                    }
                )
    return found


def memory(result: Result) -> list[dict]:
    """One row a model and arm after its last workload: MB of weights a token, of memory resident, and at its peak."""
    return [
        {
            "model": title(result, model),
            "arm": arm,
            "weights": facts["weight_bytes"] / 1e6,
            "resident": facts["rss_bytes"] / 1e6,
            "peak": max(facts["peak_rss_bytes"], facts["rss_bytes"]) / 1e6,
        }
        for model, profiles in result.data["profiles"].items()
        for arm, facts in list(profiles.values())[-1]["facts"].items()
    ]


def first_in_steps(bench: dict, arm: str) -> float:
    """Seconds of the prefill over seconds of a decoded token: how many steps the prompt is worth."""
    prompt, found = bench["provenance"]["workload"]["prompt"], bench["arms"][arm]
    return prompt / found["prefill_tok_s"]["median"] * found["decode_tok_s"]["median"]
