"""Prompts of the prefix benchmark: token counts, what is shared, and conversations as ids."""

import jinja2
import pytest
from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers

import cachequant as cq
from cachequant.assets import models as assets
from cachequant.conversation import Template, drift, prompts
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.errors import InputError
from cachequant.study import conversations
from cachequant.study.conversations import SETS, PromptSet
from helpers import random_model

COUNTS = {
    "high_reuse": [23, 26, 23, 26, 24],
    "long_high_reuse": [282, 282, 283, 284, 286],
    "no_reuse": [7, 10, 8, 8, 9],
    "france": [25, 49, 77, 103, 128, 153, 181, 208],
    "python": [26, 49, 74, 99, 125, 152, 180, 207],
    "history": [297, 324, 354, 379, 406, 432, 460, 489],
}
SHARED = {"high_reuse": [0, 19, 16, 19, 16], "long_high_reuse": [0, 275, 275, 276, 276], "no_reuse": [0, 0, 0, 0, 1]}
MODEL = random_model(context=600)


def tokenizer(*words):
    """A token for each ASCII character, and one for each of some words of two characters."""
    vocabulary = {chr(c): c for c in range(128)} | {w: 128 + i for i, w in enumerate(words)}
    raw = Raw(models.BPE(vocabulary, merges=[tuple(w) for w in words]))
    raw.pre_tokenizer = pre_tokenizers.Split("\0", "isolated")
    raw.decoder = decoders.Fuse()
    return Tokenizer(raw.to_str())


@pytest.mark.parametrize("name", SETS)
def test_every_piece_has_its_count_with_the_embedded_tokenizer(name):
    chosen, real = SETS[name], assets.resolve("smollm2-135m").tokenizer
    groups = chosen.prompts if isinstance(chosen, PromptSet) else chosen.dialogues.values()
    for pieces in groups:
        assert [len(real.encode(piece.text)) for piece in pieces] == [piece.tokens for piece in pieces]
        if isinstance(chosen, PromptSet):
            joined = [i for piece in pieces for i in piece.ids(real.vocab, real)]
            assert real.encode("".join(piece.text for piece in pieces)) == joined


@pytest.mark.parametrize("name", SHARED)
def test_prompts_of_any_model_share_what_the_texts_share(name):
    (turns,) = SETS[name].conversations(MODEL)
    assert [len(turn.prompt) for turn in turns] == COUNTS[name]
    seen = []
    for turn, shared in zip(turns, SHARED[name], strict=True):
        same = max((common(turn.prompt, before) for before in seen), default=0)
        assert shared <= same <= shared + 2  # seeded ids of a small vocabulary may agree for longer
        seen.append(turn.prompt)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_conversations_keep_generated_ids():
    found = SETS["multi_turn"].conversations(MODEL)
    assert [[len(turn.prompt) for turn in turns] for turns in found] == list(COUNTS.values())[3:]
    for turns in found:
        for before, after in zip(turns, turns[1:], strict=False):
            so_far = before.prompt + before.answer
            assert after.prompt[: len(so_far)] == so_far
        last = turns[-1]
        with MODEL.session() as session:
            assert conversations.reply(MODEL, session, last.prompt, 12) == last.answer
            assert session.ids == last.prompt + last.answer
    assert MODEL.pool.in_use == 0


def test_replies_pass_over_the_end_of_a_text():
    model = random_model(eos_ids=(int(MODEL.generate([1, 2, 3], 1).ids[0]),))
    with model.session() as session:
        made = conversations.reply(model, session, [1, 2, 3], 6)
    assert len(made) == 6
    assert model.config.eos_ids[0] not in made


def test_an_unknown_set():
    with pytest.raises(InputError, match="'some'.*high_reuse.*multi_turn"):
        conversations.get("some")


def test_a_conversation_grows_by_ids():
    talk = cq.Conversation(tokenizer(), "Be kind.")
    first = talk.ask("Hi")
    assert first == list(b"Be kind.\nUser: Hi\nAssistant:")
    talk.answer([7, 8])
    second = talk.ask("Why?")
    assert second == first + [7, 8] + list(b"\nUser: Why?\nAssistant:")
    assert talk.transcript == bytes(second).decode()
    assert prompts(tokenizer(), "Be kind.", ["Hi", "Why?"], [[7, 8]]) == [first, second]
    assert prompts(tokenizer(), "Be kind.", ["Hi", "Why?"], [[7, 8], [9]]) == [first, second]


def test_turns_out_of_order_and_numbers_of_replies():
    talk = cq.Conversation(tokenizer())
    with pytest.raises(InputError, match="nothing was asked"):
        talk.answer([1])
    talk.ask("Hi")
    with pytest.raises(InputError, match="no reply yet"):
        talk.ask("Hi")
    with pytest.raises(InputError, match="needs token ids"):
        cq.Conversation().ask("Hi")
    with pytest.raises(InputError, match="empty"):
        cq.Conversation().ask([])
    for replies in ([], [[1]] * 3):
        with pytest.raises(InputError, match=f"{len(replies)} replies for 2 turns"):
            prompts(tokenizer(), "", ["a", "b"], replies)


def test_ids_that_tokenizing_anew_would_not_give():
    pairs = tokenizer("ab")
    talk = cq.Conversation(pairs)
    talk.ask("x")
    assert talk.drift is None
    start = len(talk.ids)
    talk.answer([ord("a"), ord("b")])
    assert talk.transcript.endswith("ab")
    assert talk.drift == start
    assert drift(pairs, [ord("a"), ord("b"), ord("c")]) == 0
    assert drift(pairs, [128, ord("c")]) is None


CHATML = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def test_a_chat_template_gives_the_same_text_turn_by_turn():
    form = Template(CHATML)
    said = form.first("Be kind.", "Hi") + "Yes" + form.following("Why?")
    messages = [("system", "Be kind."), ("user", "Hi"), ("assistant", "Yes"), ("user", "Why?")]
    whole = jinja2.Environment(trim_blocks=True).from_string(CHATML)
    assert said == whole.render(messages=[{"role": r, "content": c} for r, c in messages], add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("{% for %}", "cannot be used"),
        ("{{ raise_exception('no system here') }}", "no system here"),
        ("{{ messages[5]['role'] }}", "refuses"),
        ("hello", "leaves out"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses"),
    ],
)
def test_templates_that_cannot_be_used(source, match):
    with pytest.raises(InputError, match=match):
        Template(source)
