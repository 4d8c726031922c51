"""One device and one server in simulated time: the edge loop with random acceptance, for rules of draft length.

Follows edge_client/generate.py: the server decodes unasked until a draft comes, a draft that comes too late is stale,
an empty one hands the drive back, and with look-ahead the drafter goes on while a verdict travels.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field, replace
from math import ceil

from opensled.messages import DraftBlock, DraftToken

TOKEN = DraftToken(1)
PROMPT = 4  # steps


@dataclass(frozen=True)
class Site:
    """A device, its link and its server. Times in seconds."""

    token_s: float  # to draft one
    rtt_s: float
    step_s: float  # of the server, for one token
    chance: float = 0.75  # that a draft token stands
    first: float = 0.0  # that the first one of a block does; 0 = as the others
    jitter_s: float = 0.0  # mean of an exponential delay each way
    slope_s: float = 0.0  # of a step, for each draft token
    stepped: bool = False  # steps begin all `step_s`, whether a draft is there or not
    look_ahead: bool = True
    limit: int = 16
    hint: int | None = None


@dataclass
class World:
    """The run of one device under a rule. `now` is the clock that the rule is to use."""

    site: Site
    seed: int = 1
    now: float = 0.0
    committed: int = 100
    drafted: int = 0
    modes: list[tuple[float, int]] = field(default_factory=list)  # time and length of what was asked for

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.drives, self.ready, self.under_way = True, 0, 0.0
        self.told = 0.0
        self.read_at, self.end = 0.0, sys.maxsize  # when the prompt is read; where the answer ends

    def clock(self) -> float:
        return self.now

    def run(self, rule, seconds: float) -> float:
        """Tokens/s over that time."""
        begun, until = self.committed, self.now + seconds
        started = self.now
        while self.now < until:
            self.turn(rule)
        return (self.committed - begun) / (self.now - started)

    def change(self, **site) -> None:
        self.site = replace(self.site, **site)

    def answer(self, rule, tokens: int) -> float:
        """Seconds of a new answer of so many tokens; a second passes before it. The first block may be drafted while
        the server reads the prompt, which takes as long as PROMPT steps."""
        self.now += 1.0
        rule.opened(self.site.rtt_s + self.delay())
        begun, self.drives, self.ready, self.under_way, self.told = self.now, True, 0, 0.0, 0.0
        self.read_at, self.end = self.now + PROMPT * self.site.step_s, self.committed + tokens
        while self.committed < self.end:
            self.turn(rule)
        self.end = sys.maxsize
        return self.now - begun

    def room(self, base: int) -> int:
        """Most tokens of a block there; the last token of an answer needs no draft."""
        return max(0, min(self.site.limit, self.end - base - 1))

    def turn(self, rule) -> None:
        """A verdict has just been heard."""
        site = self.site
        room = self.room(self.committed)
        self.ready = min(self.ready, room)
        length = min(room, rule.most(room, site.hint, self.ready))
        if length and self.now < self.read_at:
            length = min(room, max(length, rule.ahead(room, site.hint)))
        self.modes.append((self.now, length))
        if length:
            self.round(rule, length)
        elif self.drives:
            self.listen(rule, site.step_s)
        else:
            self.now += site.rtt_s + self.delay() + self.delay() + site.step_s
            self.drives, self.told, self.ready = True, self.now, 0
            self.committed += 1

    def listen(self, rule, seconds: float) -> None:
        """The server's next token."""
        self.now = max(self.now, self.read_at) + seconds
        self.committed += 1
        if self.told:
            rule.streamed(1, self.now - self.told)
        self.told = self.now

    def round(self, rule, length: int) -> None:
        site, base = self.site, self.committed
        drafting_s = max(0, length - self.ready) * site.token_s + self.under_way
        for _ in range(max(0, length - self.ready)):
            rule.drafted(1, site.token_s)
        right = self.right(length)
        sent, overtaken = self.now + drafting_s, 0
        arrives = sent + site.rtt_s / 2 + self.delay()
        awaited = not self.drives
        if self.drives:
            begun = max(self.now, self.read_at)
            overtaken = max(0, ceil((arrives - begun) / site.step_s))  # the step under way ends first
            arrives = max(arrives, begun + overtaken * site.step_s)
            for _ in range(overtaken):
                rule.streamed(1, site.step_s)
        stale = overtaken > min(right, length)
        step_s = 0.0 if stale else self.step_from(arrives) + site.step_s + site.slope_s * length
        back = arrives + step_s + site.rtt_s / 2 + self.delay()
        self.committed += overtaken if stale else min(right, length) + 1
        self.look_ahead(rule, length, right, back - sent)
        self.now, self.drives, self.told = back, False, 0.0
        rule.answered(DraftBlock(base, (TOKEN,) * length), min(right, length), back - sent, awaited)

    def step_from(self, arrives: float) -> float:
        """Seconds until a step begins."""
        if not self.site.stepped:
            return 0.0
        return -arrives % self.site.step_s

    def look_ahead(self, rule, length: int, right: int, seconds: float) -> None:
        site = self.site
        self.ready, self.under_way = 0, 0.0
        room = self.room(self.committed)
        most = min(room, rule.ahead(room, site.hint)) if site.look_ahead else 0
        if not most:
            return
        most += 1  # the guess of the bonus token
        done = min(most, int(seconds / site.token_s)) if site.token_s else most
        if done < most:  # the pass under way ends before anything else, and its token counts
            done += 1
            self.under_way = done * site.token_s - seconds
        for _ in range(done):
            rule.drafted(1, site.token_s)
        if right > length:
            self.ready = done - 1

    def right(self, length: int) -> int:
        """How many tokens in a row are right, at most one more than the block."""
        chances = [self.site.first or self.site.chance] + [self.site.chance] * length
        for index, chance in enumerate(chances):
            if self.random.random() >= chance:
                return index
        return len(chances)

    def delay(self) -> float:
        return self.random.expovariate(1 / self.site.jitter_s) if self.site.jitter_s else 0.0


class Fixed:
    """Always the same length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def most(self, limit, hint=None, ready=0):
        return self.length

    ahead = most

    def drafted(self, tokens, seconds):
        pass

    opened = answered = streamed = lambda self, *heard: None


def best_fixed(site: Site, seconds: float, longest: int = 16) -> tuple[float, int]:
    """The oracle: tokens/s of the best fixed length, by trying all, and that length; 0 = the server alone."""
    rates = {length: World(site, seed=7).run(Fixed(length), seconds) for length in range(longest + 1)}
    best = max(rates, key=rates.get)
    return rates[best], best
