"""Bad input: one message that names the value and what is allowed, exit code 2, nothing on stdout, no traceback."""

import pytest

TINY, TEXT = "a tiny model", "a text"  # replaced by their paths
CASES = {
    "unknown command": (["generat"], ["generat"]),
    "unknown option": (["generate", "x", "--tmp", "1"], ["--tmp"]),
    "no prompt": (["generate"], ["PROMPT", "--ids"]),
    "prompt and ids": (["generate", "x", "--ids", "1"], ["PROMPT", "--ids"]),
    "ids": (["generate", "--ids", "1,b"], ["1,b", "1,2,3"]),
    "seed": (["generate", "x", "--seed", "abc"], ["--seed", "abc", "integer"]),
    "threads": (["generate", "x", "--threads", "0"], ["--threads", "'0'", "greater than or equal to 1"]),
    "more threads than there are": (["generate", "x", "--threads", "4097"], ["4097", "between 1 and"]),
    "scheme": (["generate", "x", "--scheme", "int9"], ["int9", "int8", "bfp8"]),
    "head": (["generate", "x", "--head", "int4"], ["int4", "int8-block32"]),
    "temperature": (["generate", "x", "--temperature", "-1"], ["temperature", "-1", ">= 0"]),
    "top-k": (["generate", "x", "--top-k", "0"], ["top_k", "0", ">= 1"]),
    "top-p": (["generate", "x", "--top-p", "1.5"], ["top_p", "1.5", "(0, 1]"]),
    "model": (["generate", "x", "--model", "/no/such/model"], ["/no/such/model", "smollm2-135m"]),
    "stream and json": (["generate", "x", "--stream", "--json"], ["--stream", "--json"]),
    "text to random weights": (["generate", "Paris", "--model", "gpt2-random"], ["gpt2-random", "--ids"]),
    "tune repeats": (["tune", "--repeats", "2"], ["--repeats", "2", "at least 5"]),
    "tune model": (["tune", "--model", "/no/such/model"], ["/no/such/model", "smollm2-135m"]),
    "against": (["perplexity", "--model", TINY, "--against", "int8"], ["int8", "fp32"]),
    "perplexity scheme": (["perplexity", "--scheme", "int9"], ["int9", "bfp8"]),
    "perplexity pages": (["perplexity", "--model", TINY, "--kv", "fp3"], ["fp3", "fp32"]),
    "perplexity window": (["perplexity", "--model", TINY, "--text", TEXT, "--window", "1"], ["window", "1"]),
    "perplexity tokens": (
        ["perplexity", "--model", TINY, "--text", TEXT, "--window", "64", "--tokens", "1"],
        ["tokens", "1"],
    ),
    "perplexity text": (["perplexity", "--model", TINY, "--text", "/no/such/text"], ["/no/such/text", "enwiki"]),
    "perplexity of too few tokens": (
        ["perplexity", "--model", TINY, "--text", TEXT, "--tokens", "631", "--window", "64"],
        ["630", "631"],
    ),
    "prompt too long": (["generate", "x" * 97, "--model", TINY], ["97", "96"]),
    "prompt and new tokens too long": (
        ["generate", "x" * 90, "--model", TINY, "--max-new-tokens", "7"],
        ["max_new_tokens=7", "at most 6"],
    ),
    "no new tokens": (["generate", "x", "--model", TINY, "--max-new-tokens", "0"], ["max_new_tokens 0", ">= 1"]),
    "empty prompt": (["generate", "", "--model", TINY], ["at least one token"]),
    "id outside the vocabulary": (["generate", "--ids", "1,131", "--model", TINY], ["131", "vocabulary"]),
    "bench lengths": (
        ["bench", "decode", "--model", TINY, "--prompt", "90", "--new", "7"],
        ["90 + 7", "96"],
    ),
    "perplexity of random weights": (["perplexity", "--model", "gpt2-random"], ["gpt2-random"]),
    "bench command": (["bench", "decod"], ["decod"]),
    "bench arms": (["bench", "decode", "--arms", "int8,int9"], ["int9", "transformers-fp32"]),
    "bench transformers arms": (
        ["bench", "transformers", "--arms", "hf-int9"],
        ["hf-int9", "hf-SCHEME", "int9"],
    ),
    "bench transformers of floats": (["bench", "transformers", "--arms", "hf-fp32"], ["hf-fp32", "in float32"]),
    "bench gemm arms": (["bench", "gemm", "--arms", "int9"], ["int9", "torch-fp32"]),
    "bench new": (["bench", "decode", "--new", "1"], ["--new", "'1'"]),
    "bench prompt": (["bench", "decode", "--prompt", "0"], ["--prompt", "'0'"]),
    "bench prefill lengths": (["bench", "prefill", "--model", TINY, "--prompts", "32,97"], ["[32, 97]", "96"]),
    "bench prefill numbers": (["bench", "prefill", "--short", "few"], ["--short", "few", "none"]),
    "bench prefill arms": (["bench", "prefill", "--arms", "torch-fp32"], ["torch-fp32"]),
    "bench set": (["bench", "prefix", "--set", "some_reuse"], ["some_reuse", "long_high_reuse"]),
    "bench prefix arms": (["bench", "prefix", "--arms", "cach"], ["cach", "no-cache"]),
    "bench logits": (["bench", "prefix", "--logits", "first"], ["first", "last, all"]),
    "bench set too long": (["bench", "prefix", "--model", TINY, "--set", "multi_turn"], ["multi_turn", "501", "96"]),
    "bench prefix scheme": (["bench", "prefix", "--model", TINY, "--scheme", "int8-tensor"], ["int8-tensor"]),
    "bench model": (["bench", "decode", "--model", "/no/such/model"], ["/no/such/model"]),
    "verify model": (["verify", "--model", "/no/such/model"], ["/no/such/model", "smollm2-135m"]),
    "materialize nothing": (["materialize"], ["model"]),
    "materialize model": (["materialize", "/no/such/model", "out"], ["/no/such/model"]),
    "cache kind": (["cache", "clear", "--kind", "toys"], ["toys", "kernels"]),
    "notebook": (["run", "99_no_such"], ["99_no_such"]),
    "run name": (["run", "05_quality_grid", "--to", "../local"], ["../local", "runs/NAME"]),
    "run profile": (["run", "05_quality_grid", "--profile", "huge"], ["huge", "quick"]),
    "run parameter": (["run", "05_quality_grid", "-p", "max_tokns=1"], ["max_tokns", "max_tokens", "int"]),
    "run value": (["run", "05_quality_grid", "-p", "max_tokens=many"], ["max_tokens", "many", "int"]),
}


@pytest.mark.parametrize(("arguments", "named"), CASES.values(), ids=CASES.keys())
def test_bad_input(arguments, named, cli, tiny, text, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path))
    code, out, err = cli(*({TINY: tiny, TEXT: text}.get(a, a) for a in arguments))
    assert code == 2, err
    assert out == ""
    assert err.startswith("cachequant: ")
    assert "Traceback" not in err
    for word in named:
        assert word in err
