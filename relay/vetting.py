"""One sequence at a relay: what its own model decides is vetted, until the target confirms it or takes it back.

Lives on the event loop, beside the session. `now` in seconds on the loop's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edge_client.round.commits import Commit
from relay.survival import Survival
from verify_server.riders.answer_logprobs import AnswerLogprobs
from verify_server.round.observer import Observer
from verify_server.round.session import Session
from verify_server.rules.base import AcceptanceResult
from verify_server.rules.decide import StepResult


class Vetting(Observer):
    """Applies to a session what the target says."""

    def __init__(self, session: Session, survival: Survival) -> None:
        """`survival`: shared by all sequences of a relay."""
        self.session, self.survival = session, survival
        self._logprobs = AnswerLogprobs()  # the target's
        session.riders += (self._logprobs,)
        # Of each vetted token, whether the device had drafted it; None = a relay above has vetted it
        self.agreed: list[bool | None] = []
        self._late: list[Callable[[float], None]] = []  # what came while a step was computed

    def committed(self, tokens: int, result: StepResult | None, now: float) -> None:
        """See `Observer`: these are vetted. Then what the target has said meanwhile is applied."""
        if self.session.sequence.ahead is None:
            self.survival.unverified += tokens
        elif isinstance(result, AcceptanceResult):
            self.agreed += [index < result.num_accepted for index in range(tokens)]
        late, self._late = self._late, []
        for apply in late:
            apply(now)

    def hear(self, commit: Commit, now: float, ahead: tuple[int, ...] = (), finish_reason: str = "") -> None:
        """The target has committed more, and perhaps ended it, or a relay above has vetted `ahead` behind that; what is
        being computed ends first."""
        self._after_step(partial(self._follow, commit, ahead, finish_reason), now)

    def go_alone(self, now: float) -> None:
        """The target is gone, and the relay's own model has the last word; what is being computed ends first."""
        self._after_step(self._decide_alone, now)

    def _after_step(self, apply: Callable[[float], None], now: float) -> None:
        if self.session.in_step:
            self._late.append(apply)
        else:
            apply(now)

    def _decide_alone(self, now: float) -> None:
        session, base = self.session, self.session.sequence.confirmed
        self.survival.unverified += len(session.sequence.truth.vetted)
        session.sequence.decide_alone()
        self.agreed.clear()
        session.retell(base, now)

    def _follow(self, commit: Commit, ahead: tuple[int, ...], finish_reason: str, now: float) -> None:
        session, sequence, base = self.session, self.session.sequence, self.session.sequence.confirmed
        known = sequence.follow((*commit.tokens, *ahead), len(commit.tokens), finish_reason)
        self._learn(known, len(commit.tokens), len(ahead))
        if relays := commit.origins.count("relay"):  # those of a relay above that has lost its target
            sequence.is_unverified_from(sequence.confirmed - relays)
        self._logprobs.add(commit.logprobs)
        session.retell(base, now)

    def _learn(self, known: int, final: int, ahead: int) -> None:
        """`final` tokens are confirmed, `ahead` more are vetted above; the first `known` of all were vetted here."""
        before, survival = self.agreed, self.survival
        stood = min(known, final)
        for agreed in before[:stood]:
            survival.add_verdict(agreed, True)
        if stood < min(len(before), final):
            survival.add_verdict(before[stood], False)
        kept = len(self.session.sequence.truth.vetted) - ahead  # of those behind all that is said above
        survival.confirmed += stood
        survival.taken_back += len(before) - known - kept
        self.agreed = [*[None] * ahead, *before[len(before) - kept :]]
