"""Who repeats a session's tokens, and what branches of one session share."""

from collections.abc import Sequence
from pathlib import Path

from cachequant.decoder.model import Model
from cachequant.kv.session import Session
from cachequant.study import variants


def across(model: Model, names: Sequence[str], prompt: Sequence[int], new: int, folder: Path, **sampling) -> dict:
    """Each variant generates, saves, and every variant replays what the others made.

    A variant replays its own answer from the file; that of another one from the ids alone, as snapshots are bound to
    the model that made them.

    Parameters
    ----------
    names : schemes with page formats, as in ``int8/k4v4``.
    **sampling : of the answers and of their replays; greedy by default.

    Returns
    -------
    {maker: {"tokens": length of the answer, "first": {replayer: how many tokens are the same before the first that
    differs, None if all are}}}
    """
    models = {name: variants.get(name).of(model)[0] for name in names}
    path, found = folder / "replay.safetensors", {}
    for maker, made_by in models.items():
        with made_by.session() as session:
            answer = session.generate(list(prompt), new, **sampling).ids
            session.save(path)
        found[maker] = {"tokens": len(answer), "first": {}}
        for name, other in models.items():
            with _session(other, path if name == maker else None, [*prompt, *answer]) as again:
                difference = again.replay(len(prompt), **sampling).difference
            found[maker]["first"][name] = None if difference is None else difference - len(prompt)
    path.unlink()
    return found


def _session(model: Model, path: Path | None, ids: Sequence[int]) -> Session:
    if path:
        return model.load_session(path)
    session = model.session()
    session.append(ids)
    return session


def branches(model: Model, prompt: Sequence[int], count: int, new: int, temperature: float) -> dict:
    """Branches of one session, each with an answer of its own, and the pages that they hold.

    Returns
    -------
    {"tokens": of the prompt, "pages": of each branch the page numbers in the order of first use, "answers": texts,
    "shared_bytes": what all of them hold together, "separate_bytes": the same without sharing}
    """
    with model.session() as trunk:
        trunk.extend(prompt[:-1], "none")
        grown = [trunk.fork() for _ in range(count)]
        try:
            answers = [
                b.generate(prompt[-1:], new, temperature=temperature, seed=i).text for i, b in enumerate(grown, 1)
            ]
            numbers: dict[int, int] = {}
            held = [[numbers.setdefault(p, len(numbers)) for p in s.pages] for s in (trunk, *grown)]
            return {
                "tokens": len(prompt),
                "pages": held,
                "answers": answers,
                "shared_bytes": sum(model.pool.size(p) for p in numbers),
                "separate_bytes": sum(s.nbytes for s in (trunk, *grown)),
            }
        finally:
            for branch in grown:
                branch.close()
