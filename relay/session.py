"""The relay's side of one sequence: verdicts tell what is confirmed and what is vetted.

Lives on the event loop, as its base class does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from edge_client.commits import Commit
from opensled.messages import Draft, Prefill, Verdict
from opensled.penalties import TokenCounts
from relay.sequence import RelaySequence
from relay.survival import Survival
from scheduler.plan import SessionView
from verify_server.acceptance.base import AcceptanceResult
from verify_server.outbox import Outbox
from verify_server.session import Session, StepItem


def nothing() -> None:
    """Nobody wants to know."""


@dataclass(eq=False)
class RelaySession(Session):
    """A session whose own verdicts are provisional; see `Session`."""

    sequence: RelaySequence
    survival: Survival = field(default_factory=Survival)  # shared by all sessions of a relay
    most_vetted: int = 16  # tokens that it may run ahead of the target now
    changed: Callable[[], None] = nothing  # called when there are more vetted tokens, or others, or a reader
    # Of each vetted token, whether the device had drafted it; None = a relay above has vetted it
    agreed: list[bool | None] = field(default_factory=list)
    revision: int = 0  # how often vetted tokens were taken back
    _told: int = 0  # confirmed tokens that the reader has been told of
    _late: list[Callable[[float], None]] = field(default_factory=list)  # what came while a step was computed

    @property
    def full(self) -> bool:
        """Whether it waits for the target: it is far enough ahead, or at an end."""
        return len(self.agreed) >= self.most_vetted or bool(self.sequence.finish_reason)

    def may_vet(self, most: int) -> None:
        """From now on it may run `most` tokens ahead of the target."""
        self.most_vetted, self._view = most, None

    def attach(self, known: int) -> Outbox:
        """See `Session.attach`."""
        self._told = known
        outbox = super().attach(known)
        self.changed()
        return outbox

    def detach(self) -> None:
        """See `Session.detach`; the target is not heard meanwhile."""
        super().detach()
        self.changed()

    def view(self, now: float) -> SessionView:
        """See `Session.view`; nothing is computed for a session that waits for the target."""
        view = super().view(now)
        view.absent |= self.full
        return view

    def commit(self, item: StepItem, result: AcceptanceResult | None, now: float) -> int:
        """See `Session.commit`: vets instead, and then applies what the target has said meanwhile."""
        count = super().commit(item, result, now)
        if self.sequence.is_alone:
            self.survival.unverified += count
        elif result is not None and item.check is not None:
            accepted = result.num_accepted
            self.agreed += [index < accepted for index in range(count)]
        late, self._late = self._late, []
        for apply in late:
            apply(now)
        self.changed()
        return count

    def _drop(self, draft: Draft, now: float) -> None:
        """See `Session._drop`; a draft behind an end that is not confirmed waits for what the target says of that end.

        Answered at once, the device would send one after another until then.
        """
        sequence, rest = self.sequence, self.sequence.rebase(draft.block)
        if sequence.finish_reason and not sequence.over and rest is not None:
            self.pending = self._pending(draft, rest, now)
        else:
            super()._drop(draft, now)

    def confirm(
        self, confirmed: Commit, now: float, ahead: tuple[int, ...] = (), finish_reason: str = ""
    ) -> None:
        """The target has committed more, and perhaps ended it, or a relay above has vetted `ahead` behind that; what is
        being computed ends first."""
        self._after_step(partial(self._apply, confirmed, ahead, finish_reason), now)

    def go_alone(self, now: float) -> None:
        """The target is gone, and the relay's own model has the last word; what is being computed ends first."""
        self._after_step(self._go_alone, now)

    def pass_on(self, prefill: Prefill) -> None:
        """Its reader hears how far the target has read the text; see `_tell_prefill`."""
        self.outbox.put_prefill(prefill)

    def _tell_prefill(self) -> None:
        """See `Session._tell_prefill`; its reader waits for the target, not for what this relay reads, unless alone."""
        if self.sequence.is_alone:
            super()._tell_prefill()

    def _after_step(self, apply: Callable[[float], None], now: float) -> None:
        if self.in_step:
            self._late.append(apply)
        else:
            apply(now)

    def _go_alone(self, now: float) -> None:
        self._view = None
        self.survival.unverified += len(self.sequence.vetted)
        self.sequence.go_alone()
        self.agreed.clear()
        self._tell(self.sequence.confirmed)

    def _apply(self, confirmed: Commit, ahead: tuple[int, ...], finish_reason: str, now: float) -> None:
        self._view = None
        self._correct(confirmed, finish_reason)
        self._follow(ahead)
        # Those of a relay above that has lost its target
        self.sequence.unverified += confirmed.origins.count("relay")
        self.logprobs += confirmed.logprobs
        self._rebase_pending(now)
        self._tell(self.sequence.confirmed)

    def _correct(self, confirmed: Commit, finish_reason: str) -> None:
        before, said = len(self.sequence.vetted), len(confirmed.tokens)
        stood = self.sequence.correct(confirmed.tokens, finish_reason)
        for agreed in self.agreed[:stood]:
            self.survival.seen(agreed, True)
        self.survival.confirmed += stood
        if stood == said and len(self.sequence.vetted) == before - stood:
            del self.agreed[:stood]
            return
        if stood < min(before, said):
            self.survival.seen(self.agreed[stood], False)
        self._rewound(0, before - stood)

    def _follow(self, ahead: tuple[int, ...]) -> None:
        before, stood = len(self.sequence.vetted), self.sequence.follow(ahead)
        self.agreed[:stood] = [None] * stood
        if stood < len(ahead):
            self._rewound(stood, before - stood)

    def _rewound(self, kept: int, taken_back: int) -> None:
        """Vetted tokens behind the first `kept` were taken back, or who is above was ahead."""
        self.survival.taken_back += taken_back
        self.revision += 1
        self.agreed[kept:] = [None] * (len(self.sequence.vetted) - kept)
        if self.emitted is not None:
            self.emitted = TokenCounts(self.sequence.tokens[self.sequence.prompt_length :])

    def _tell(self, base: int, answers: int = 0, num_accepted: int = 0) -> None:
        """See `Session._tell`: all that is known behind the last confirmed token that the reader has."""
        sequence = self.sequence
        base, self._told = min(base, self._told), sequence.confirmed
        news = sequence.confirmed - base
        self.outbox.put(
            Verdict(
                base=base,
                tokens=tuple(sequence.tokens[base:]),
                num_accepted=num_accepted,
                answers=answers,
                finish_reason=sequence.finish_reason if sequence.over else "",
                hint=self.turn.hint,
                logprobs=tuple(self.logprobs[-news:]) if news else (),
                vetted=len(sequence) - sequence.confirmed,
                unverified=min(sequence.unverified, news),
                revision=self.revision,
            )
        )
