"""`chat` through stdin with tiny models: streaming, branches, saved sessions, Ctrl-C."""

import io
import shutil
import signal
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

import cachequant as cq
from cachequant.chat import Chat
from cachequant.decoder.sampling import Sampler
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.errors import InputError
from helpers import byte_level, checkpoint, random_model

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'][0] + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>a' }}{% endif %}"
)
END = 129


@pytest.fixture(scope="module")
def templated(tiny, tmp_path_factory):
    """The tiny model with a chat template; tokens 128 and 129 begin and end a message, no token ends a text."""
    folder = tmp_path_factory.mktemp("templated") / "model"
    shutil.copytree(tiny, folder)
    tokenizer = Library.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def say(cli, monkeypatch):
    """Run a chat with lines on stdin."""

    def run(*arguments, lines):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        return cli("chat", *arguments)

    return run


def test_replies_are_those_of_a_session(say, tiny):
    code, out, err = say("--model", tiny, "--max-new-tokens", 5, lines=["Hi", "", "Why?"])
    assert code == 0, err
    with cq.load(tiny).session() as session:
        want = [
            session.generate("\nUser: Hi\nAssistant:", 5).text,
            session.generate("\nUser: Why?\nAssistant:", 5).text,
        ]
    assert out == "".join(text + "\n" for text in want)


def test_the_chat_template_and_its_end_of_turn(say, templated, monkeypatch, tmp_path):
    model = cq.load(templated)
    assert model.config.eos_ids != (END,)
    want = model.generate("<s>sBe kind.</s><s>uHi</s><s>a", 6)
    code, out, _ = say(
        *("--model", templated, "--system", "Be kind.", "--max-new-tokens", 6, "--save", tmp_path / "s"), lines=["Hi"]
    )
    assert (code, out) == (0, want.text + "\n")
    chosen, choose = [], Sampler.choose

    def stop(self, logits, generator):
        chosen.append(choose(self, logits, generator))
        return END if len(chosen) % 3 == 0 else chosen[-1]

    monkeypatch.setattr(Sampler, "choose", stop)
    code, _, err = say("--model", templated, "--resume", tmp_path / "s", lines=["A", "B", "/stats"])
    assert code == 0
    assert len(chosen) == 6
    assert "turns          3" in err
    with model.load_session(tmp_path / "s") as session:
        text = model.tokenizer.decode(session.ids, skip_special=False)
    a, b = (model.tokenizer.decode(chosen[i : i + 2], skip_special=False) for i in (0, 3))
    assert text.startswith("<s>sBe kind.</s><s>uHi</s><s>a")
    assert text.endswith(f"</s><s>uA</s><s>a{a}</s><s>uB</s><s>a{b}")


def test_branches_and_rewinding(say, tiny, tmp_path):
    lines = ["Hi", "/fork", "Why?", "/stats", "/branch 1", "How?", "/rewind", "/stats", f"/save {tmp_path / 's'}"]
    code, _, err = say("--model", tiny, "--max-new-tokens", 14, lines=lines)
    assert code == 0, err
    first, second = (part.split("decode_tok_s")[0] for part in err.split("branch         ")[1:])
    assert first.startswith("2\nbranches       2\nturns          2\n")
    assert second.startswith("1\nbranches       2\nturns          1\n")
    assert "shared         1\n" in first
    with cq.load(tiny).session() as session, cq.load(tiny).load_session(tmp_path / "s") as saved:
        session.generate("\nUser: Hi\nAssistant:", 14)
        assert saved.ids == session.ids


def test_save_and_resume_over_codes(say, tiny, tmp_path):
    folder = Path(checkpoint("llama-coded", str(tmp_path)))
    shutil.copy(Path(tiny) / "tokenizer.json", folder)
    pages = ("--model", folder, "--kv", "k4v4", "--calibration", "none")
    code, out, err = say(*pages, "--max-new-tokens", 30, "--save", tmp_path / "s", lines=["Hello there"])
    assert code == 0, err
    code, more, err = say(*pages, "--max-new-tokens", 9, "--resume", tmp_path / "s", lines=["And?"])
    assert code == 0, err
    with cq.load(folder, kv="k4v4", calibration="none").session() as session:
        first = session.generate("\nUser: Hello there\nAssistant:", 30)
        second = session.generate("\nUser: And?\nAssistant:", 9)
        assert (out, more) == (first.text + "\n", second.text + "\n")
        with session.model.load_session(tmp_path / "s") as saved:
            assert saved.ids == session.ids


def test_bad_lines_are_told_and_the_chat_goes_on(say, tiny):
    lines = ["/fish", "/branch 2", "/rewind", "/branch x", "x" * 97, "/help", "Hi", "/quit", "never"]
    code, out, err = say("--model", tiny, "--max-new-tokens", 3, lines=lines)
    assert code == 0
    assert out.count("\n") == 1
    for word in (
        "unknown command '/fish'",
        "no branch 2",
        "rewind by 1",
        "'x' is not",
        "the context holds 96",
        "/fork",
    ):
        assert word in err


def test_refusals_before_the_model_is_loaded(say, tmp_path):
    for arguments, words in (
        (("--resume", tmp_path / "none"), ["none"]),
        (("--save", tmp_path / "no" / "s"), ["no folder"]),
        (("--scheme", "int9"), ["int9"]),
        (("--model", "gpt2-random"), ["no tokenizer"]),
    ):
        code, out, err = say(*arguments, lines=[])
        assert (code, out) == (2, "")
        assert all(word in err for word in words)


def test_ctrl_c_ends_a_reply_between_tokens_and_the_chat_goes_on(say, tiny, tmp_path, monkeypatch):
    extend, calls = cq.Session.extend, []

    def interrupted(self, ids, *more):
        calls.append(ids)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return extend(self, ids, *more)

    monkeypatch.setattr(cq.Session, "extend", interrupted)
    code, out, _ = say("--model", tiny, "--save", tmp_path / "s", lines=["Hi", "/stats"])
    assert code == 0
    assert len(calls) == 4
    with cq.load(tiny).load_session(tmp_path / "s") as session, cq.load(tiny).session() as fresh:
        made = fresh.generate("\nUser: Hi\nAssistant:", 4)
        assert (session.ids, out) == (fresh.ids, made.text + "\n")


def test_ctrl_c_at_the_prompt_ends_the_chat_and_saves(cli, tiny, tmp_path, monkeypatch):
    class Input(io.StringIO):
        def readline(self):
            line = super().readline()
            if not line:
                raise KeyboardInterrupt
            return line

    monkeypatch.setattr(sys, "stdin", Input("Hi\n"))
    code, _, err = cli("chat", "--model", tiny, "--max-new-tokens", 3, "--save", tmp_path / "s")
    assert code == 130
    assert "saved to" in err
    cq.load(tiny).load_session(tmp_path / "s").close()


def test_json(cli_json, tiny, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\nWhy?\n"))
    code, found = cli_json("chat", "--model", tiny, "--max-new-tokens", 3)
    assert code == 0
    assert [turn["text"] for turn in found["turns"]] == ["Hi", "Why?"]
    assert (found["stats"]["turns"], found["saved"]) == (2, None)


def test_no_half_characters_are_written(monkeypatch):
    tokenizer = Tokenizer(byte_level())
    model = random_model(vocab=tokenizer.vocab, tokenizer=tokenizer)
    said, drawn = "né 🙂!", []
    ids = tokenizer.encode(said)
    monkeypatch.setattr(Sampler, "choose", lambda self, *given: drawn.append(0) or ids[len(drawn) - 1])
    with Chat(model, max_new_tokens=len(ids)) as talk:
        assert list(talk.reply("Hi")) == ["n", "é", " ", "🙂", "!"]
    assert len(ids) == 9


def test_chats_that_cannot_be(tiny):
    for model in (random_model(), random_model("int8-tensor", tokenizer=Tokenizer(byte_level()))):
        with pytest.raises(InputError, match="no tokenizer|int8-tensor"):
            Chat(model)
