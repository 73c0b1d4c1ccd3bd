"""How long greedy texts of two models stay the same."""

from collections.abc import Sequence


def greedy_divergence(model, reference, prompts: Sequence[list[int]], new: int = 64) -> list[int]:
    """How many greedy tokens of two models agree, a prompt each, before the first that differs; `new` if none does.

    Parameters
    ----------
    model, reference : loaded models of the same tokenizer.
    prompts : token ids.
    new : tokens to generate; an end-of-text token is a token like others.
    """
    found = []
    for prompt in prompts:
        ours, theirs = greedy(model, prompt, new), greedy(reference, prompt, new)
        found.append(next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), new))
    return found


def greedy(model, prompt: list[int], new: int) -> list[int]:
    """`new` greedy tokens after a prompt; the lower id wins a tie."""
    tokens = []
    with model.session() as session:
        for _ in range(new):
            tokens.append(int(session.extend(tokens[-1:] or prompt).argmax()))
    return tokens
