"""Whether a text is the target's own, up to flips between tokens that stand nearly level.

An engine of numerics level `fast` rounds otherwise than the reference, so at a near tie it may choose the other token.
Teacher forcing tells a flip from a fault: the reference reads the text token by token, and wherever the text leaves the
reference's choice, that choice must have led by less than a stated bound (design section 5).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.testbed.reference import Reference, Sampling, key_of_seed

UNFINISHED = "\ufffd"  # what decoding shows for bytes that are no whole character yet
MAX_TRIES = 4  # forward passes for each token of the text; more means that everything is a near tie


@dataclass(frozen=True)
class Followed:
    """How the reference follows a text to its end."""

    tokens: int
    flips: int  # tokens that were not the reference's choice
    lead: float  # the largest that was passed over, in logits; 0.0 without a flip


@dataclass(frozen=True)
class _Place:
    """A prefix of the text as tokens, and what it took to get there."""

    tokens: tuple[int, ...] = ()
    flips: int = 0
    lead: float = 0.0
    ended: bool = False  # by an end token


class _Rows:
    """The reference's logits after a prompt and some tokens: a forward pass for each, or one along a guessed text."""

    def __init__(self, reference: Reference, prompt: Sequence[int], text: str = "") -> None:
        self._reference, self._prompt, self._text = reference, list(prompt), text
        self._guess: tuple[int, ...] = ()
        self._known: Sequence[np.ndarray] = ()

    def after(self, tokens: tuple[int, ...]) -> np.ndarray:
        if not self._text:
            return self._reference.logits([*self._prompt, *tokens])[0]
        if len(tokens) >= len(self._known) or self._guess[: len(tokens)] != tokens:
            self._compute(tokens)
        return self._known[len(tokens)]

    def _compute(self, tokens: tuple[int, ...]) -> None:
        """Along `tokens`, then along the rest of the text as the tokenizer cuts it."""
        rest = self._text[len(self._reference.decode(tokens).rstrip(UNFINISHED)) :]
        self._guess = (*tokens, *self._reference.encode(rest))
        self._known = self._reference.logits([*self._prompt, *self._guess], last=len(self._guess) + 1)


def follow(
    reference: Reference, body: Mapping[str, Any], text: str, bound: float, *, one_pass: bool = False
) -> Followed | None:
    """Read the answer `text` to an OpenAI request `body` (messages, temperature, seed, max_tokens).

    `bound`: a lead below this many logits may flip; 0 = none. None if the target would not have written the text.
    `one_pass`: compute the text in one pass as the tokenizer cuts it, and again from where the target cuts it
    otherwise: other last bits, and much quicker.
    """
    prompt = reference.render_chat(body["messages"])
    seed = body.get("seed")
    sampling = Sampling(body["temperature"], key=b"" if seed is None else key_of_seed(seed))
    room = min(body["max_tokens"], reference.context_length - len(prompt))
    rows = _Rows(reference, prompt, text if one_pass else "")
    places, tries = [_Place()], MAX_TRIES * room
    while places and tries:
        place = places.pop()
        if place.ended or len(place.tokens) == room:
            if reference.decode(place.tokens) == text:
                return Followed(len(place.tokens), place.flips, place.lead)
            continue
        tries -= 1
        position = len(prompt) + len(place.tokens)
        scores = sampling.scores(rows.after(place.tokens), position)
        near = _near(scores, sampling.temperature, bound)
        steps = [_step(reference, place, token, lead) for token, lead in near]
        places += [step for step in reversed(steps) if _fits(reference, step, text)]
    return None


def _near(scores: np.ndarray, temperature: float, bound: float) -> list[tuple[int, float]]:
    """(token, lead of the winner over it in logits): the winner, then those it leads by less than `bound`."""
    winner = int(np.argmax(scores))
    leads = (scores[winner] - scores) * (temperature or 1.0)
    others = [int(token) for token in np.flatnonzero(leads < bound) if token != winner]
    return [
        (winner, 0.0),
        *((token, float(leads[token])) for token in sorted(others, key=lambda t: leads[t])),
    ]


def _step(reference: Reference, place: _Place, token: int, lead: float) -> _Place:
    return _Place(
        (*place.tokens, token), place.flips + (lead > 0), max(place.lead, lead), token in reference.eos_ids
    )


def _fits(reference: Reference, place: _Place, text: str) -> bool:
    """Whether the text goes on, or ends, as `place` says."""
    written = reference.decode(place.tokens)
    return written == text if place.ended else text.startswith(written.rstrip(UNFINISHED))


def total(paths: Sequence[Followed | None]) -> tuple[int, float]:
    """Flips of all paths, and the largest lead that one of them passed over."""
    found = [path for path in paths if path is not None]
    return sum(path.flips for path in found), max((path.lead for path in found), default=0.0)
