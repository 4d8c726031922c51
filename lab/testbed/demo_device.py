"""One device of the demo: what it was asked, what it answered, and what the target alone says to that."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.testbed.client import StreamedReply
from lab.testbed.forcing import Followed, total
from lab.testbed.processes import Process
from opensled.core.errors import OpenSledError

LOW = 0.5  # accepted share of the drafts below which `why_low` says why


@dataclass
class DemoDevice:
    """One device of the demo and what it has done."""

    name: str
    drafter: str
    prompts: list[dict[str, Any]]  # OpenAI request bodies
    replies: list[StreamedReply] = field(default_factory=list)
    plain: list[StreamedReply] = field(default_factory=list)  # the same answers without drafts
    alone: int = 0  # replies, the first ones, that were written while nothing else asked
    paths: list[Followed | None] = field(default_factory=list)  # how the target alone follows each answer
    at_rest: str = ""  # why it drafts nothing at the end

    @property
    def identical(self) -> int:
        """Answers that are token for token the target's own."""
        return sum(path is not None and not path.flips for path in self.paths)

    @property
    def compared(self) -> int:
        return len(self.paths)

    @property
    def unlike_plain(self) -> int:
        """Answers that are other than without drafts."""
        return sum(reply.text != plain.text for reply, plain in zip(self.replies, self.plain))

    def total(self, name: str) -> float:
        return sum(reply.usage.get("opensled", {}).get(name, 0) for reply in self.replies)

    @property
    def tokens(self) -> int:
        return sum(reply.usage.get("completion_tokens", 0) for reply in self.replies)

    @property
    def speeds(self) -> tuple[float, float]:
        """Tokens/s of the replies alone, with and without drafts; 0.0 before there are any."""
        count = min(self.alone, len(self.replies), len(self.plain))
        return speed(self.replies[:count]), speed(self.plain[:count])

    @property
    def gains(self) -> list[float]:
        """Tokens/s of each reply alone over those of the same answer without drafts; they differ by noise."""
        count = min(self.alone, len(self.replies), len(self.plain))
        return [speed([own]) / speed([plain]) for own, plain in zip(self.replies[:count], self.plain)]

    @property
    def saved(self) -> float:
        """Share of the tokens, of the answers alone, that took the server no step: the accepted draft tokens."""
        replies = self.replies[: self.alone] if self.alone else self.replies
        written = sum(reply.usage.get("completion_tokens", 0) for reply in replies)
        accepted = sum(reply.usage.get("opensled", {}).get("accepted", 0) for reply in replies)
        return accepted / written if written else 0.0

    @property
    def step_times(self) -> float:
        """How many times as long a step takes with this device's drafts as without, drafting and the link included:
        the gain is 1 / ((1 - saved) * step_times). 0.0 before there are answers alone.
        """
        drafted, plain = self.speeds
        return plain / drafted / (1 - self.saved) if drafted and self.saved < 1 else 0.0

    def report(self) -> dict[str, Any]:
        drafted, rounds = self.total("drafted"), self.total("rounds")
        round_tokens = self.tokens - self.total("server_decoded")
        return {
            "name": self.name,
            "drafter": self.drafter,
            "tokens": self.tokens,
            "rounds": rounds,
            "drafted": drafted,
            "accepted": self.total("accepted"),
            "acceptance_rate": round(self.total("accepted") / drafted, 3) if drafted else 0.0,
            "tokens_per_round": round(round_tokens / rounds, 3) if rounds else 0.0,
            "steps_saved": round(self.saved, 3),
            "tokens_per_second": round(speed(self.replies), 1),
            "identical": self.compared > 0 and self.identical == self.compared,
            "flips": total(self.paths)[0],
            "unlike_plain": self.unlike_plain,
        }


def speed(replies: Sequence[StreamedReply]) -> float:
    """Tokens/s from the request to the end of the answer."""
    seconds = sum(reply.seconds for reply in replies)
    return sum(reply.usage.get("completion_tokens", 0) for reply in replies) / seconds if seconds else 0.0


def why_low(devices: Sequence[DemoDevice]) -> str:
    """One line about devices of whose drafts the target accepts less than `LOW`; "" without any."""
    low = {device.drafter for device in devices if device.total("accepted") < LOW * device.total("drafted")}
    reasons = []
    if low - {"lookup"}:
        reasons.append("blocks are never cut short, and a wrong token rejects all after it")
    if "lookup" in low:
        reasons.append("lookup has no draft model and only repeats earlier words")
    return f"accepted is low: {'; '.join(reasons)}" if reasons else ""


def stop_fleet(server: Process, edges: Sequence[Process]) -> dict[str, float]:
    """Ends all processes; the server's totals. Raises OpenSledError if the server failed."""
    for edge in edges:
        edge.stop()
    if server.stop() != 0:
        raise OpenSledError("the server of the demo failed; its errors are above")
    totals: dict[str, float] = json.loads(server.lines[-1])
    return totals
