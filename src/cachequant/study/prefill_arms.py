"""A model that runs prompts, as one arm of `prefill_bench`; runs inside a worker."""

import time

from cachequant.study import breakdown, timing

SHORT_SECONDS, WARM_UP_TOKENS = 0.1, 64


class PrefillWork:
    """One arm.

    Parameters
    ----------
    arm : a scheme of this library.
    model, threads : as for every arm.
    """

    def __init__(self, arm: str, model: str, threads: int):
        import cachequant

        self._model = cachequant.load(model, arm, threads=threads)
        self._apart = breakdown.kernel_by_kernel(self._model)
        warm = [1] * min(WARM_UP_TOKENS, self._model.config.context - 1)
        self._seconds([warm, [1]]), self.attention(warm)  # loads every kernel that the measurements need

    def facts(self) -> dict:
        return {"weight_bytes": self._model.weight_bytes}

    def prefill(self, ids: list[int]) -> dict:
        """Seconds of one pass over a prompt, to the logits of its last position."""
        return {"seconds": self._seconds([ids])}

    def attention(self, ids: list[int]) -> dict:
        """Seconds of such a pass kernel by kernel, and of attention in it."""
        with (
            breakdown.recorded({"attention": breakdown.KERNELS["attention"]}) as found,
            self._apart.session() as session,
        ):
            begin = time.perf_counter()
            session.extend(ids)
            return {"seconds": time.perf_counter() - begin, "attention": found["attention"]}

    def short(self, ids: list[int]) -> dict:
        """Median seconds of passes over a short prompt, for SHORT_SECONDS."""
        return {"seconds": timing.median(self._for_a_while([ids]))}

    def steps(self, ids: list[int]) -> dict:
        """The same, and of its tokens one by one in turn.

        Only the last token's logits are computed in either case, which spares the second one all other heads.
        """
        once, apart = self._for_a_while([ids], [[token] for token in ids])
        return {"seconds": timing.median(once), "steps": timing.median(apart)}

    def _for_a_while(self, *cuts: list[list[int]]) -> list:
        """Seconds of a prompt in pieces, for each way of cutting it, in turn."""
        seconds, begin = [[] for _ in cuts], time.perf_counter()
        while not seconds[0] or time.perf_counter() - begin < SHORT_SECONDS:
            for values, parts in zip(seconds, cuts, strict=True):
                values.append(self._seconds(parts))
        return seconds if len(cuts) > 1 else seconds[0]

    def _seconds(self, parts: list[list[int]]) -> float:
        with self._model.session() as session:
            begin = time.perf_counter()
            for part in parts[:-1]:
                session.extend(part, logits="none")
            session.extend(parts[-1])
            return time.perf_counter() - begin
