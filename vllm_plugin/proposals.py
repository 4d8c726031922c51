"""Decides how much of each draft of vLLM's own drafter a step verifies, and which requests it drafts for next.

The policy that plans for devices sees them as drafts of a server (`SessionView.servers`), and what it knows of their
acceptance is learned here. Knows vLLM's requests by their counts of tokens only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hw_profiles.drafting_cost import DraftingCostModel
from hw_profiles.fading import FadingRatio
from hw_profiles.step_cost import DraftingCost, HardwareProfile, StepCost
from opensled.core.protocol import common_prefix
from scheduler.estimates import DeviceBook, DraftEstimate, Forecast
from scheduler.plan import NO_OFFER, OfferView, SchedulingPolicy, SessionView, Snapshot
from verify_server.drafting.model import ServerModel
from verify_server.round.server_source import PRIOR, SHARE

# Chosen: minimum seconds between two plans while nobody drafts; a change is noticed later by at most as much
LOOK_S = 0.05
# Beside vLLM's own in a step, and in what the worker returns
ASKS, DRAFTED = "opensled_asks", "opensled_drafted"
# Drafters whose passes take time; the others draft in every step
WITH_PASSES = ("draft_model", "eagle", "eagle3", "mtp")


class _Text:
    """The text of a request, and the drafts for it."""

    def __init__(self, request: Any, number: int, estimate: DraftEstimate) -> None:
        """`number`: in the policy's snapshots."""
        self.request, self.number, self.estimate = request, number, estimate
        # Tokens that the drafter proposes / tokens that it is asked for
        self.share = FadingRatio(SHARE, PRIOR * estimate.device.offered.ratio, PRIOR)
        self.asked = 0  # tokens, after the step under way
        self.read = 0  # tokens of it that a draft model has read
        self.draft: Sequence[int] = ()  # of which the step under way verifies a part

    @property
    def is_seeded(self) -> bool:
        """Whether the lengths of its drafts choose among its random numbers, so that they must not follow the load."""
        params = self.request.sampling_params
        return params.seed is not None and params.temperature > 0

    def take(self) -> None:
        """Take the draft that vLLM has put down."""
        self.draft = tuple(self.request.spec_token_ids)
        if self.asked:
            for share in (self.share, self.estimate.device.offered):
                share.add(min(len(self.draft), self.asked), self.asked)
            self.read = self.request.num_tokens if self.draft else self.read

    def view(self, longest: int, reads: bool, now: float) -> SessionView:
        length, request = self.request.num_tokens, self.request
        offer = OfferView(
            len(self.draft) or None,
            self.estimate.forecast,
            longest,
            share=self.share.ratio,
            unread=length - self.read if reads else 0,
        )
        left = max(1, request.max_tokens - request.num_output_tokens)
        return SessionView(
            self.number,
            1,
            True,
            now,
            NO_OFFER,
            offer,
            (offer,),
            context=length - 1,
            ready_since=now,
            left=left,
        )


class Proposals:
    """The drafter's requests, and what the policy decides about them."""

    def __init__(self, policy: SchedulingPolicy, method: str, longest: int, cost: StepCost) -> None:
        """`method`, `longest`: of vLLM's `speculative_config`; `cost`: of the target's steps, as a first guess."""
        self.asks: dict[str, int] = {}  # tokens that the drafter is asked for after the step, by request
        self._policy, self._longest = policy, longest
        self._rests, self._reads = method in WITH_PASSES, method == "draft_model"
        self._costs = DraftingCostModel(ServerModel.first_cost(cost) if self._rests else DraftingCost())
        self._estimates = DeviceBook(Forecast(delay_s=0.0, draft_s=0.0, jitter_s=0.0))
        self._texts: dict[str, _Text] = {}
        self._numbers, self._looked = 0, 0.0
        self._memory: object = None

    def add(self, request: Any) -> None:
        """A request has come."""
        self._numbers += 1
        self._texts[request.request_id] = _Text(request, self._numbers, self._estimates.of("", "vLLM"))

    def remove(self, request_id: str) -> None:
        """A request is over."""
        self._texts.pop(request_id, None)

    def plan(self, deciding: Collection[str], profile: HardwareProfile, now: float) -> None:
        """Cut the drafts that the next step verifies, and choose the requests to draft for after it."""
        texts = [text for id, text in self._texts.items() if id in deciding]
        for text in texts:
            text.take()
        waits = any(text.draft or (text.asked and self._rests) for text in texts)
        if not waits and now < self._looked + LOOK_S:
            self.asks = {}
            return
        self._looked = now
        views = tuple([text.view(self._longest, self._reads, now) for text in texts])
        found = self._policy.plan(
            Snapshot(views, self._memory), replace(profile, drafting=(self._costs.cost,)), now
        )
        self._memory = found.memory
        pieces = {piece.session: piece for piece in found.slices}
        for text in texts:
            piece = pieces.get(text.number)
            if not text.is_seeded:
                text.request.spec_token_ids = [*text.draft[: piece.own or 0]] if piece else []
            asked = min(piece.ask, self._longest) if piece else 0
            text.asked = asked if self._rests and not text.is_seeded else self._longest
        self.asks = {text.request.request_id: text.asked for text in texts if text.asked}

    def learn(self, step: Any, output: Any) -> float:
        """Learn from a step; returns the seconds of drafting in it."""
        for id, place in output.req_id_to_index.items():
            text = self._texts.get(id)
            news = output.sampled_token_ids[place] if output.sampled_token_ids else ()
            if text is not None and text.draft and news:
                # The token behind those that were verified is known, too.
                seen = text.draft[: 1 + len(step.scheduled_spec_decode_tokens.get(id, ()))]
                text.estimate.add_verdict(len(seen), common_prefix(seen, news))
                text.draft = ()
        longest, tokens, read, seconds = getattr(output, DRAFTED, (0, 0, 0, 0.0))
        if tokens:
            self._costs.observe(longest, tokens, read, seconds)
        return float(seconds)
