"""Simulated devices whose drafts are right where those of a real draft model were.

tests/golden/right_drafts.json says of each token of an answer whether SmolLM2 drafts it right.
"""

from __future__ import annotations

import json
from pathlib import Path

from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.learned_sums import Learned
from hw_profiles.sysfs import BoardState
from tests.draft_world import Site, World

ANSWERS, TOKENS = 10, 128
KINDS = {
    kind: "".join(texts)
    for kind, texts in json.loads(
        (Path(__file__).parent / "golden" / "right_drafts.json").read_text()
    ).items()
    if kind != "about"
}
# A server on a core or on a graphics card, near and far; devices with fast and slow draft models.
SITES = [
    Site(token_s, rtt_s, step_s, 0.9, jitter_s=rtt_s / 8, slope_s=slope * step_s, look_ahead=ahead, limit=60)
    for token_s, rtt_s, step_s, slope in (
        (0.012, 0.001, 0.13, 0.003),
        (0.012, 0.02, 0.03, 0.02),
        (0.03, 0.02, 0.05, 0.01),
    )
    for ahead in (True, False)
]


class Texts(World):
    """A device whose drafts are right where a real draft model's were."""

    def __init__(self, site: Site, right: str) -> None:
        super().__init__(site)
        self.texts = right

    def right(self, length: int) -> int:
        found = (
            index
            for index in range(length + 1)
            if self.texts[(self.committed + index) % len(self.texts)] == "0"
        )
        return next(found, length + 1)


def answers(world: World, rule, count: int = ANSWERS) -> list[float]:
    """Seconds of each."""
    return [world.answer(rule, TOKENS) for _ in range(count)]


def adaptive(world: World) -> Adaptive:
    return Adaptive(look_ahead=world.site.look_ahead, clock=world.clock, board=BoardState)


SLOW_SERVER = SITES[0]


def learned_of(site: Site) -> Learned:
    world = Texts(site, KINDS["chat"])
    rule = adaptive(world)
    answers(world, rule)
    learned = rule.learned()
    assert learned is not None
    return learned
