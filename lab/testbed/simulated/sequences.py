"""The simulated target: recorded texts, by which the product's acceptance rule decides as by a target's own samples."""

from abc import abstractmethod
from typing import Any, cast

from lab.testbed.traces import ItemTrace, TraceSet, eos_ids
from opensled.core.protocol import EndRules, common_prefix
from verify_server.engine.base import Scores
from verify_server.kv.memory import SequenceMemory
from verify_server.round.sequence import Sequence
from verify_server.round.step_item import StepItem
from verify_server.rules.base import AcceptanceResult, SessionScores
from verify_server.rules.decide import Outcome


class Script:
    """One item: its recorded text, and how long it might have become."""

    __slots__ = ("alone", "eos_ids", "item", "last", "prompt", "reason", "text", "trace")

    def __init__(self, trace: ItemTrace, last: int, eos_ids: frozenset[int] = frozenset()) -> None:
        """`eos_ids`: what ends a text of the hub, which is recorded to its end."""
        self.trace, self.item, self.reason = trace, trace.item, trace.finish_reason
        self.prompt, self.text, self.alone = (
            len(ids) for ids in (trace.prompt_ids, trace.target_ids, trace.alone_ids)
        )
        self.eos_ids = eos_ids
        self.last = last  # length of the text at which max_tokens would end it


def scripts(traces: TraceSet) -> list[Script]:
    """Of all items, in their order."""
    items = traces.items
    # How long an item that ended by itself might have become is not recorded; its neighbours say it.
    longest = max((len(item.target_ids) for item in items), default=0)
    lengths = [len(item.target_ids) if item.finish_reason == "length" else longest for item in items]
    ends = eos_ids(items)
    return [Script(item, last, ends) for item, last in zip(items, lengths)]


END = -1  # stands for the token after the recorded text, which never commits
NO_SCORES = cast(Scores, None)  # rule `match` asks for samples alone, and those are recorded


class Decides(Sequence):
    """A sequence that was recorded: it knows what its target says to every draft that counts."""

    @property
    @abstractmethod
    def rest(self) -> tuple[int, ...]:
        """The target's own tokens behind all that is known."""

    def decided(self, item: StepItem) -> AcceptanceResult | None:
        """What the session's acceptance rule says of the draft in a step; None = there is nothing to decide."""
        check = item.check
        if check is None:
            return None
        rest = self.rest
        # What `Match` says of a chain, without its requests: simulations are made of these
        if not check.parents:
            accepted = common_prefix(check.ids, rest)
            return AcceptanceResult(accepted, rest[accepted] if accepted < len(rest) else END)
        deciding = item.session.terms.rule.decide(check, SessionScores(NO_SCORES, 0, check))
        own: list[int] | None = None
        while True:
            try:
                request = next(deciding) if own is None else deciding.send(own)
            except StopIteration as done:
                result: AcceptanceResult = done.value
                return result
            own = _samples(rest, request.position - check.position, len(request.rows))


class RecordedSequence(Decides):
    """Ends where the recorded text does; how long it might have become is in `ends`."""

    def __init__(self, script: Script) -> None:
        ends = EndRules(frozenset(), frozenset(), script.prompt + script.last)
        super().__init__(script.trace.prompt_ids, script.prompt, ends, SequenceMemory())
        self._script = script

    @property
    def rest(self) -> tuple[int, ...]:
        return self._script.trace.target_ids[len(self) - self.prompt_length :]

    def cut(self, ids: Any) -> tuple[tuple[int, ...], str]:
        left = self._script.prompt + self._script.text - len(self)
        return tuple(ids[:left]), self._script.reason if len(ids) >= left else ""


def _samples(rest: tuple[int, ...], place: int, count: int) -> list[int]:
    """The target's own tokens behind the first `place` tokens of the text that is to come, if they were drafted right;
    those behind a wrong one never count."""
    found = list(rest[place : place + count])
    return found + [END] * (count - len(found))


def decided(item: StepItem) -> Outcome:
    """What its acceptance rule says of a step over a recorded sequence."""
    assert isinstance(item.session.sequence, Decides), "all sequences here are recorded"
    return item.session.sequence.decided(item)
