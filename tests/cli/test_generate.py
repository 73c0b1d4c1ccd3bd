"""`generate`: what --json holds, streaming, sampling options, models without a tokenizer."""

import cachequant as cq


def test_json(cli_json, tiny):
    code, found = cli_json("generate", "The fox", "--model", tiny, "--scheme", "int8", "--max-new-tokens", 5)
    assert code == 0
    out = cq.load(tiny, scheme="int8").generate("The fox", max_new_tokens=5)
    assert (found["ids"], found["text"], found["stop_reason"]) == (out.ids, out.text, "token_limit")
    assert (found["prompt_tokens"], found["scheme"], found["random_weights"]) == (7, "int8", False)
    assert found["prefill_tok_s"] > 0
    assert found["decode_tok_s"] > 0


def test_one_token_has_no_decode_speed(cli_json, tiny):
    _, found = cli_json("generate", "x", "--model", tiny, "--max-new-tokens", 1)
    assert found["decode_tok_s"] is None


def test_the_context_limit_without_max_new_tokens(cli_json, wordless):
    _, found = cli_json("generate", "--model", wordless, "--ids", ",".join(["5"] * 90))
    assert (len(found["ids"]), found["stop_reason"], found["text"]) == (6, "context_limit", None)


def test_a_full_context_has_no_speeds(cli_json, wordless):
    code, found = cli_json("generate", "--model", wordless, "--ids", ",".join(["5"] * 96))
    assert (code, found["ids"], found["prefill_tok_s"], found["decode_tok_s"]) == (0, [], None, None)


def test_streamed_text_equals_the_whole_text(cli, tiny):
    arguments = ("generate", "The fox", "--model", tiny, "--max-new-tokens", 9)
    whole, streamed = cli(*arguments), cli(*arguments, "--stream")
    assert whole[:2] == streamed[:2]
    assert "token_limit" in streamed[2]


def test_ids_are_printed_without_a_tokenizer(cli, wordless):
    arguments = ("generate", "--ids", "1,2,3", "--model", wordless, "--max-new-tokens", 4)
    whole, streamed = cli(*arguments)[1].split(), cli(*arguments, "--stream")[1].split()
    assert whole == streamed
    assert len([int(i) for i in whole]) == 4


def test_sampling_options_reach_the_sampler(cli_json, tiny):
    base = ("generate", "ab", "--model", tiny, "--max-new-tokens", 12)
    draw = ("--temperature", 1.5, "--top-k", 40, "--top-p", 0.9, "--seed", 3)
    expected = cq.load(tiny).generate("ab", max_new_tokens=12, temperature=1.5, top_k=40, top_p=0.9, seed=3).ids
    assert cli_json(*base, *draw)[1]["ids"] == expected != cli_json(*base)[1]["ids"]


def test_threads(cli_json, tiny):
    assert cli_json("generate", "ab", "--model", tiny, "--max-new-tokens", 2, "--threads", 1)[0] == 0
    assert cq.kernels.get_threads() == 1
    cq.kernels.set_threads()
