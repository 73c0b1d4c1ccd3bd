"""`cachequant chat`: talk to a model; the session can be branched, rewound, saved and resumed."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachequant.cli import loading, output
from cachequant.cli.session import KeyFile, read_key
from cachequant.errors import InputError

if TYPE_CHECKING:
    from cachequant.chat import Chat

COMMANDS = """/fork        go on in a new branch that shares everything so far
/branch N    go on in branch N
/rewind [N]  forget the last N turns (1)
/stats       tokens, pages and speed
/save FILE   save this branch to a file
/help        this list
/quit        end; with --save the branch is saved"""


def register(app: typer.Typer) -> None:
    app.command(
        epilog=output.example(
            "cachequant chat --scheme int8 --kv k4v4 --save chat.safetensors",
            "cachequant chat --scheme int8 --kv k4v4 --resume chat.safetensors",
        )
    )(chat)


def chat(
    model: Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    scheme: output.Scheme = None,
    head: output.Head = None,
    kv: output.Kv = "fp32",
    calibration: output.Calibration = "auto",
    save: Annotated[
        Path | None, typer.Option(help="Where the session is saved at the end; default: the resumed file.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Saved session to go on with.")] = None,
    key_file: KeyFile = None,
    system: Annotated[str, typer.Option(help="What the model is told before the first turn.")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a reply.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the smallest set with this probability.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Talk to a model, a line a turn.

    Lines that begin with a slash are commands: /help lists them. Ctrl-C stops a reply, and ends the chat where nothing
    is being said; the session is saved all the same.
    """
    import cachequant
    from cachequant import schemes
    from cachequant.chat import Chat
    from cachequant.decoder.sampling import Sampler
    from cachequant.kv import formats, snapshot
    from cachequant.kv.calibration import check_calibration

    sampling = dict(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    schemes.get(scheme or "fp32", head), formats.get(kv), check_calibration(calibration), Sampler(**sampling)
    key, target = read_key(key_file), save or resume
    if resume is not None:
        snapshot.read(resume, key)
    if target is not None and not target.absolute().parent.is_dir():
        raise InputError(f"cannot save to {target}: there is no folder {target.absolute().parent}")
    with output.quiet(json):
        loading.resolve_model(model, json, "a chat needs one")
        loaded = cachequant.load(model, scheme, head, threads, kv, calibration)
        session = loaded.load_session(resume, key) if resume else None
        with Chat(loaded, session, system, max_new_tokens, **sampling) as talk:
            try:
                turns = _talk(talk, key, json)
            finally:
                if target is not None and talk.session.ids:
                    talk.session.save(target, key)
                    output.note(f"{talk.session.position} tokens saved to {target}")
            found = {"turns": turns, "stats": asdict(talk.stats), "saved": target and str(target)}
    output.show(found, json, lambda found: None)


def _talk(talk: "Chat", key: bytes | None, as_json: bool) -> list[dict[str, str]]:
    """Turns and commands until the input ends; gives what was said."""
    said = []
    for line in _lines():
        try:
            if not line.startswith("/"):
                said.append({"text": line, "reply": _reply(talk, line, (lambda piece: None) if as_json else _write)})
            elif not _command(talk, line, key):
                break
        except InputError as error:
            output.note(f"{error}")
    return said


def _reply(talk: "Chat", line: str, write: Callable[[str], None]) -> str:
    """Writes a reply as it comes, until it ends or Ctrl-C is pressed; gives it."""
    reply = []
    with _interruptible() as interrupted:
        for piece in talk.reply(line, interrupted):
            write(piece)
            reply.append(piece)
    write("\n")
    return "".join(reply)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Yields what tells whether Ctrl-C was pressed: no token is cut in the middle. The second one raises."""
    pressed = []

    def note(number, frame):
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _command(talk: "Chat", line: str, key: bytes | None) -> bool:
    """Runs a command; False if it ends the chat. Raises InputError for what it is not."""
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    if name in ("quit", "exit"):
        return False
    if name == "help":
        output.note(COMMANDS)
    elif name == "fork":
        output.note(f"branch {talk.fork()}, {talk.session.position} tokens shared")
    elif name == "branch":
        talk.switch(_number(rest, None))
        output.note(f"branch {rest}, {talk.session.position} tokens")
    elif name == "rewind":
        talk.rewind(_number(rest, 1))
        output.note(f"{talk.session.position} tokens left")
    elif name == "stats":
        stats = asdict(talk.stats)
        width = max(map(len, stats))
        for label, value in stats.items():
            shown = output.size(value) if label == "nbytes" else f"{value:.1f}" if isinstance(value, float) else value
            output.note(f"{label:<{width}}  {'' if shown is None else shown}")
    elif name == "save" and rest:
        talk.session.save(rest, key)
        output.note(f"{talk.session.position} tokens saved to {rest}")
    else:
        raise InputError(f"unknown command {line!r}:\n{COMMANDS}")
    return True


def _number(text: str, default: int | None) -> int:
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise InputError(f"{text!r} is not a whole number")
    return int(text)


def _lines() -> Iterator[str]:
    """Lines of stdin, without those that are empty; a terminal is asked for them, with editing where there is some."""
    asks = sys.stdin.isatty()
    if asks:
        with suppress(ImportError):
            import readline  # noqa: F401
    while True:
        try:
            line = input("> " if asks else "").strip()
        except EOFError:
            return
        if line:
            yield line


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
