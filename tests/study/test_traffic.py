"""Bytes and multiplications a token agree with the published sizes of the two models."""

import pytest

from cachequant.decoder.config import DecoderConfig
from cachequant.study import traffic

GPT2 = DecoderConfig(
    family="gpt2", vocab=50257, context=1024, width=768, layers=12, heads=12, kv_heads=12, head_dim=64, ffn=3072,
    norm_eps=1e-5, activation="gelu_tanh", tied=True, attention_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
SMOLLM2 = DecoderConfig(
    family="llama", vocab=49152, context=8192, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, ffn=1536,
    norm_eps=1e-5, activation="silu", tied=True, rope_theta=1e5,
)  # fmt: skip


@pytest.mark.parametrize("config,count", [(GPT2, 48), (SMOLLM2, 210)], ids=["gpt2", "smollm2"])
def test_quantized_matrices_are_counted(config, count):
    facts = traffic.shape(config)
    assert facts["quantized"] == count == len(facts["block_matrices"]) * config.layers


def test_multiplications_of_gpt2():
    found = traffic.shape(GPT2)["multiplications"]
    assert found == {"blocks": 12 * 12 * 768**2, "head": 50257 * 768}


@pytest.mark.parametrize(
    "config,scheme,megabytes",
    [
        (GPT2, "fp32", 494),
        (GPT2, "int8", 239.5),
        (GPT2, "int8+head", 126),
        (SMOLLM2, "fp32", 538),
        (SMOLLM2, "int8", 220),
    ],
)
def test_bytes_a_token(config, scheme, megabytes):
    found = traffic.weight_bytes(config, scheme)
    assert found["total"] == found["blocks"] + found["head"]
    assert found["total"] / 1e6 == pytest.approx(megabytes, abs=1)


def test_bfp8_counts_its_exponents():
    eight, block = traffic.weight_bytes(GPT2, "int8")["blocks"], traffic.weight_bytes(GPT2, "bfp8")["blocks"]
    assert block == pytest.approx(85e6 * 8.25 / 8, rel=1e-2) and block > eight


@pytest.mark.parametrize(
    "scheme,blocks,head",
    [("fp32", 32, 32), ("int8", 8 + 32 * (0.75 / 576 + 0.25 / 1536), 32), ("bfp8+head", 8.25, 8.5)],
)
def test_bits_are_a_mean_over_rows_of_different_lengths(scheme, blocks, head):
    found = traffic.bits(traffic.shape(SMOLLM2), traffic.weight_bytes(SMOLLM2, scheme))
    assert found == {"blocks": pytest.approx(blocks), "head": pytest.approx(head)}


def test_key_value_bytes_follow_the_key_value_heads():
    assert traffic.shape(SMOLLM2)["kv_bytes"] == 2 * 30 * 192 * 4


def test_reached_turns_speed_into_traffic_and_arithmetic():
    speeds = {"prefill_tok_s": {"median": 100.0}, "decode_tok_s": {"median": 10.0}}
    bench = {
        "provenance": {"workload": {"prompt": 200, "new": 50}},
        "arms": {"fp32": speeds},
        "facts": {"fp32": {"weight_bytes": 500_000_000}},
    }
    model = traffic.shape(SMOLLM2)
    found = traffic.reached(model, bench, "fp32")
    assert found["bytes"] == 500_000_000 + 46080 * 225
    assert found["decode_gb_s"] == pytest.approx(found["bytes"] * 10 / 1e9)
    work = model["multiplications"]
    assert found["prefill_gops"] == pytest.approx(2 * (200 * work["blocks"] + work["head"]) / 2.0 / 1e9)


def test_operations_of_a_prompt_are_those_of_its_tokens_one_by_one():
    found = traffic.prompt_operations(SMOLLM2, 5)
    scores = sum(2 * 9 * 64 * (t + 1) for t in range(5))  # nine heads of 64, every key up to the query's own
    assert found["attention"] == 30 * 2 * scores
    multiplications = traffic.shape(SMOLLM2)["multiplications"]
    assert found["products"] == 2 * (5 * multiplications["blocks"] + multiplications["head"])
