"""Drafts of vLLM's own drafter under goodput: verified where rows are cheap, left out where they are not."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from hw_profiles.step_cost import HardwareProfile, Roofline
from scheduler import make_policy
from scheduler.plan import PolicyOptions
from vllm_plugin.proposals import DRAFTED, Proposals

LONGEST, PASS_S = 5, 0.004
CHEAP, DEAR = Roofline(read_s=0.02, token_s=1e-5), Roofline(read_s=0.0, token_s=0.01)


class World:
    """A server of some users whose drafter is right with a given chance in each place; its clock is made up."""

    def __init__(self, method: str, users: int, cost: Roofline, right: float, **sampling: object) -> None:
        self.own = Proposals(make_policy("goodput", PolicyOptions(1.0)), method, LONGEST, cost)
        self.profile, self.now, self.draw = HardwareProfile(512, cost), 100.0, random.Random(1)
        self.rests, self.right = method == "draft_model", right
        params = SimpleNamespace(**{"seed": None, "temperature": 0.0, **sampling})
        self.requests = {
            str(number): SimpleNamespace(
                request_id=str(number),
                sampling_params=params,
                spec_token_ids=[],
                num_tokens=50,
                num_output_tokens=1,
                max_tokens=1 << 20,
            )
            for number in range(users)
        }
        for request in self.requests.values():
            self.own.add(request)

    def steps(self, count: int) -> tuple[float, float]:
        """Verified tokens and tokens that the drafter is asked for, each of a request in a step."""
        verified = asked = 0
        for _ in range(count):
            self.own.plan(self.requests, self.profile, self.now)
            drafts = {id: list(each.spec_token_ids) for id, each in self.requests.items()}
            verified, asked = verified + sum(map(len, drafts.values())), asked + sum(self.own.asks.values())
            self._step(drafts)
        return verified / count / len(drafts), asked / count / len(drafts)

    def _step(self, drafts: dict[str, list[int]]) -> None:
        rows = sum(1 + len(draft) for draft in drafts.values())
        news = {id: self._news(draft) for id, draft in drafts.items()}
        places = {id: place for place, id in enumerate(drafts)}
        output = SimpleNamespace(req_id_to_index=places, sampled_token_ids=[*news.values()])
        asks = self.own.asks if self.rests else dict.fromkeys(self.requests, LONGEST)
        longest, seconds = max(asks.values(), default=0), 0.0
        if longest and self.rests:
            seconds = PASS_S * longest
            setattr(output, DRAFTED, (longest, sum(asks.values()), 50 * len(asks), seconds))
        self.own.learn(SimpleNamespace(scheduled_spec_decode_tokens=drafts), output)
        self.now += seconds + self.profile.cost.verify_s(rows, 0, len(drafts))
        for id, request in self.requests.items():
            request.num_tokens += len(news[id])
            request.spec_token_ids = [1] * asks.get(id, 0)

    def _news(self, draft: list[int]) -> list[int]:
        accepted = next(
            (place for place, _ in enumerate(draft) if self.draw.random() > self.right), len(draft)
        )
        bonus = 1 if accepted == len(draft) and self.draw.random() < self.right else 2
        return [*draft[:accepted], bonus]


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_good_drafts_of_cheap_rows_are_verified_whole(method):
    world = World(method, 2, CHEAP, right=0.95)
    world.steps(100)
    assert world.steps(100)[0] > 0.9 * LONGEST


@pytest.mark.parametrize(("method", "right"), [("draft_model", 0.6), ("ngram", 0.05), ("ngram", 0.6)])
def test_dear_rows_are_spared(method, right):
    world = World(method, 16, DEAR, right)
    world.steps(100)
    verified, asked = world.steps(200)
    assert verified < 0.1 and (asked < 0.2 or method == "ngram")


def test_a_text_that_has_become_easy_is_noticed():
    world = World("draft_model", 2, CHEAP, right=0.02)
    world.steps(400)
    assert world.steps(100)[0] < 0.5
    world.right = 0.97
    world.steps(1500)
    assert world.steps(100)[0] > 0.5 * LONGEST


def test_a_seeded_text_keeps_the_lengths_of_vllm():
    world = World("draft_model", 16, DEAR, right=0.5, seed=3, temperature=0.8)
    world.steps(3)
    assert world.steps(50) == (LONGEST, LONGEST)
