"""Devices, their hubs and the server: what the law of chains is asked about, from profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from hw_profiles import catalog
from hw_profiles.profiles import DeviceProfile, DraftSpeed, LinkProfile
from hw_profiles.speculation import STEPS
from hw_profiles.step_cost import TargetCost
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.planner.hierarchy import Candidate, Chain, Hierarchy, Hop
from lab.testbed.planner.hierarchy_blocks import Agreement, Dependence
from lab.testbed.planner.hierarchy_rounds import Ahead
from lab.testbed.planner.trip import mean_s
from opensled.core.errors import NotFound

DRAFT, MIDDLE, TARGET = "draft", "middle", "target"  # models
DEVICE, HUB, CLOUD = "device", "hub", "cloud"  # places
BOUNDS = (0.0, 0.4)  # of a relay: whole blocks, and its default

Path = tuple[tuple[str, str], ...]  # (model, place) from the target down


@dataclass(frozen=True)
class TierDrafts:
    """How often the three models agree."""

    agreements: Mapping[tuple[str, str], Agreement]
    dependences: Mapping[tuple[str, str, str], Dependence]
    source: str  # for a sentence


@dataclass(frozen=True)
class Site:
    """One device and its hub; the server may have more of both."""

    device: DeviceProfile
    draft: str  # size of the draft model
    link: LinkProfile  # between device and hub
    hub: TargetCost  # the middle model on the hub
    hub_rtt_s: float  # between hub and server, a mean
    server: TargetCost
    context: int  # KV positions that a conversation holds
    drafts: TierDrafts
    longest: int  # tokens of a block
    answer: int = 0  # tokens of an answer; 0 = so many that its start and its end do not count
    others: float = 0.0  # sessions of other users in a step of the server, on average
    alike: bool = False  # whether their steps are like this device's; else each has one token in a step

    @property
    def hub_fits(self) -> bool:
        """Whether the hub has room for its model and one conversation."""
        return sessions_beside(self.hub, self.context) > 0

    def shared(self, others: float) -> Site:
        """The same at a server with that many other sessions in its steps, all on the same path."""
        return replace(self, others=others, alike=True)

    @property
    def hierarchy(self) -> Hierarchy:
        """What the law may choose from."""
        there = (self._drafts_on_device(), self._on_hub(), self._beside_target(), (self._target(),))
        candidates = tuple(candidate for some in there for candidate in some)
        # Smaller models first: DRAFT comes before MIDDLE, and each of them before TARGET
        order = (DRAFT, MIDDLE, TARGET)
        return Hierarchy(
            tuple(sorted(candidates, key=lambda each: order.index(each.model))),
            self._hops(),
            self.drafts.agreements,
            self.drafts.dependences,
            self.longest,
        )

    def rate(self, chain: Chain) -> float:
        """Tokens/s of a user."""
        return chain.answer_rate(self.answer) if self.answer else chain.rate

    def users(self, chain: Chain) -> float:
        """How many there are at the server, if its steps hold `others` sessions beside one's own."""
        if chain.below is None or chain.below.lower.place == CLOUD:  # every session is in every step
            return 1 + self.others
        return 1 + self.others * chain.tokens / self.rate(chain) / chain.step_s

    def places(self, path: Path) -> int:
        """Sessions whose KV is on the server's accelerator at the same time."""
        beside = {(DRAFT, CLOUD): self.draft, (MIDDLE, CLOUD): self.middle}
        size = next((size for drafter, size in beside.items() if drafter in path), "")
        return sessions_beside(self.server, self.context, _draft_shape(size, self.server), reserved=True)

    @property
    def middle(self) -> str:
        """The middle model as a size of draft."""
        return self.hub.target.id.removeprefix("draft-")

    def _drafts_on_device(self) -> list[Candidate]:
        sizes = {DRAFT: self.draft, MIDDLE: self.middle}
        return [
            Candidate(model, DEVICE, partial(_decode_s, self.device.draft(size)), judges=False)
            for model, size in sizes.items()
            if size in self.device.drafts
        ]

    def _on_hub(self) -> list[Candidate]:
        if not self.hub_fits:
            return []
        found = [Candidate(MIDDLE, HUB, self._alone(self.hub))]
        small = _draft_shape(self.draft, self.hub)
        return [Candidate(DRAFT, HUB, self._alone(small)), *found] if small else found

    def _beside_target(self) -> list[Candidate]:
        costs = {
            model: _draft_shape(size, self.server)
            for model, size in ((DRAFT, self.draft), (MIDDLE, self.middle))
        }
        return [
            Candidate(model, CLOUD, self._draft_step(cost), judges=False)
            for model, cost in costs.items()
            if cost
        ]

    def _target(self) -> Candidate:
        return Candidate(TARGET, CLOUD, self._target_step(self.server))

    def _alone(self, cost: TargetCost) -> Callable[[float], float]:
        return lambda positions: cost.verify_s(positions, self.context)

    def _draft_step(self, cost: TargetCost) -> Callable[[float], float]:
        """Beside the target: a pass drafts for all who are alike."""
        sessions = 1 + self.others * self.alike
        return lambda positions: cost.verify_s(positions * sessions, self.context * sessions)

    def _target_step(self, cost: TargetCost) -> Callable[[float], float]:
        sessions, others = 1 + self.others, self.others
        if self.alike:
            return lambda positions: cost.verify_s(positions * sessions, self.context * sessions)
        return lambda positions: cost.verify_s(positions + others, self.context * sessions)

    def _hops(self) -> dict[tuple[str, str], Hop]:
        near = mean_s(self.link)
        wait = (STEPS - 1) * min(1.0, self.others)  # at an idle server no block waits
        return {
            (DEVICE, HUB): Hop(near),
            (HUB, CLOUD): Hop(self.hub_rtt_s, bounds=BOUNDS, wait=wait),
            (DEVICE, CLOUD): Hop(near + self.hub_rtt_s, wait=wait),
            (CLOUD, CLOUD): Hop(0.0, Ahead.NOTHING),
        }


def path_of(chain: Chain) -> Path:
    """Which models, and where."""
    return tuple((each.model, each.place) for each in chain.candidates)


def words_of(path: Path) -> str:
    """Its models and places as tokens go."""
    return " -> ".join(f"{model} on {place}" for model, place in reversed(path))


def _decode_s(speed: DraftSpeed, positions: float) -> float:
    """Seconds in which a device writes one token."""
    assert positions == 1, "a device's models draft alone"
    return speed.draft_s(1)


def _draft_shape(size: str, beside: TargetCost) -> TargetCost | None:
    """The draft model on the accelerator of another one, as quantized; None for a size that only devices know."""
    try:
        shape = catalog.target(f"draft-{size}").at(beside.target.weight_bits)
    except NotFound:
        return None
    return None if shape.params >= beside.target.params else replace(beside, target=shape)
