"""Workers side by side: all arms of a benchmark loaded at once, asked in turn, dropped with a reason if they fail."""

from collections.abc import Callable, Iterator, Sequence

from cachequant.errors import InputError
from cachequant.study.processes import OPEN_SECONDS, Worker, WorkerError

Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """The progress of nobody watching."""


class Crew:
    """One worker an arm.

    Parameters
    ----------
    requests : {arm: its `open` request}.
    threads : of every worker.
    settle : {arm: seconds that its threads may spin after a run}.
    progress : called with (arms loaded, arms, name).

    Attributes
    ----------
    facts : {arm: what it said when it was opened}.
    missing : {arm: why it could not run}.
    """

    def __init__(
        self,
        requests: dict[str, dict],
        threads: int,
        settle: dict[str, float] | None = None,
        progress: Progress = silent,
    ):
        self.facts, self.missing = {}, {}
        self._workers = {}
        try:
            for name, request in requests.items():
                self._workers[name] = Worker(threads, (settle or {}).get(name, 0.0))
                self._workers[name].send("open", **request)
            for i, name in enumerate(requests):
                reply = self._guard(name, lambda worker: worker.receive(OPEN_SECONDS))
                if reply is not None:
                    self.facts[name] = reply
                progress(i + 1, len(requests), f"loading {name}")
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """Arms that are able to run, in the order of the request."""
        return list(self._workers)

    def ask(self, name: str, do: str, **request) -> dict | None:
        """The reply of one arm, or None if it failed: then it is missing from now on."""
        return self._guard(name, lambda worker: worker.ask(do, **request))

    def _guard(self, name: str, call: Callable[[Worker], dict]) -> dict | None:
        if name not in self._workers:
            return None
        try:
            return call(self._workers[name])
        except WorkerError as error:
            self.missing[name] = str(error)
            self._workers.pop(name).close()
            return None

    def close(self) -> None:
        while self._workers:
            self._workers.popitem()[1].close()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def rotations(names: Sequence[str], rounds: int) -> Iterator[tuple[int, list[str]]]:
    """(round, order of the arms): every round starts with another arm, so that none always follows the same one."""
    for r in range(rounds):
        cut = r % max(1, len(names))
        yield r, [*names[cut:], *names[:cut]]


def checked(names: Sequence[str], get: Callable[[str], object]) -> dict:
    """{name: get(name)} of a list of arms that is neither empty nor has an arm twice; `get` refuses unknown ones."""
    names = list(names)
    if not names:
        raise InputError("no arms: name at least one")
    if len(set(names)) < len(names):
        raise InputError(f"an arm is named twice: {', '.join(names)}")
    return {name: get(name) for name in names}
