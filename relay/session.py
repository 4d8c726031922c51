"""The relay's side of one sequence: verdicts tell what is confirmed and what is vetted.

Lives on the event loop, as its base class does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edge_client.commits import Commit
from opensled.messages import Verdict
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
    most_vetted: int = 16  # tokens that it runs ahead of the target
    changed: Callable[[], None] = nothing  # called when there are more vetted tokens, or others, or a reader
    agreed: list[bool] = field(
        default_factory=list
    )  # of each vetted token, whether the device had drafted it
    _told: int = 0  # confirmed tokens that the reader has been told of
    _late: list[Commit] = field(default_factory=list)  # came while a step was computed

    @property
    def full(self) -> bool:
        """Whether it waits for the target: it is far enough ahead, or at an end that is not confirmed."""
        return len(self.agreed) >= self.most_vetted or bool(self.sequence.finish_reason)

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
        if result is not None and item.check is not None:
            accepted = result.num_accepted
            self.agreed += [index < accepted for index in range(count)]
        late, self._late = self._late, []
        for confirmed in late:
            self._apply(confirmed, now)
        self.changed()
        return count

    def confirm(self, confirmed: Commit, now: float) -> None:
        """The target has committed more; what is being computed ends first."""
        if self.in_step:
            self._late.append(confirmed)
        else:
            self._apply(confirmed, now)

    def _apply(self, confirmed: Commit, now: float) -> None:
        sequence, before = self.sequence, len(self.sequence.vetted)
        self._view = None
        stood = sequence.correct(confirmed.tokens)
        for agreed in self.agreed[:stood]:
            self.survival.seen(agreed, True)
        self.survival.confirmed += stood
        if stood < len(confirmed.tokens):
            self.survival.taken_back += before - stood
            if stood < before:
                self.survival.seen(self.agreed[stood], False)
            self._rewound()
        else:
            del self.agreed[:stood]
        self.logprobs += confirmed.logprobs
        self._rebase_pending(now)
        self._tell(sequence.confirmed)

    def _rewound(self) -> None:
        """Vetted tokens were taken back, or the target was ahead."""
        self.agreed.clear()
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
            )
        )
