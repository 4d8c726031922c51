"""The drafts of a fleet's devices: none, a recording in the device's time, or the real drafter at its pace."""

import asyncio
from collections.abc import Mapping, Sequence

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory
from edge_client.round.draft_job import BlockBudget, Drafted
from edge_client.round.drafting import DraftThread
from hw_profiles import catalog
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.paced import PacedFactory
from lab.testbed.emulation.replay import NoDrafts, ReplayDrafts
from lab.testbed.fleet import Group
from lab.testbed.load.load import Item
from lab.testbed.rules import rule_of
from lab.testbed.traces import ItemTrace, TraceSet
from opensled.core.errors import UsageError
from opensled.core.messages import ModelInfo
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler


class LiveDrafts(DraftThread):
    """A drafter in its thread, counted."""

    drafted = 0
    _counted = 0  # of the tokens wasted in the present sequence

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        super().begin(truth, sampler)
        self._counted = 0

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        future = super().draft(truth, budget)
        future.add_done_callback(self._count)
        return future

    def _count(self, future: asyncio.Future[Drafted]) -> None:
        if not future.cancelled() and not future.exception():
            self.drafted += len(future.result().block.tokens) + self.wasted - self._counted
            self._counted = self.wasted


CountedDrafting = NoDrafts | ReplayDrafts | LiveDrafts  # they count all of their tokens


def recorded(items: Sequence[Item], traces: TraceSet | None) -> dict[str, ItemTrace]:
    """The traces of `items`, by id; of none without `traces`. Raises UsageError for an item that cannot be replayed."""
    if traces is None:
        return {}
    known = {trace.item: trace for trace in traces.items}
    for item in items:
        trace = known.get(item.id)
        if trace is None:
            raise UsageError(
                f"the recorded drafts of {traces.drafter} do not hold item {item.id}: take fewer items or the recorded "
                "workload, or let the real drafters run (live = true)"
            )
        if trace.finish_reason == "length" and item.max_tokens > len(trace.target_ids):
            raise UsageError(
                f"item {item.id} was recorded for {len(trace.target_ids)} tokens, not {item.max_tokens}; ask for fewer"
            )
    found = {item.id: known[item.id] for item in items}
    if len({trace.prompt_ids for trace in found.values()}) < len(found):
        raise UsageError("two of the items have the same prompt: drafts are replayed by prompt")
    return found


def replays(group: Group, traces: TraceSet | None) -> bool:
    """Whether the devices of `group` draft what was recorded, and do not run a model."""
    return group.drafter != "none" and not group.live and traces is not None


def speed_of(group: Group) -> DraftSpeed | None:
    """Of its draft model on its device; None = as fast as this machine is."""
    return catalog.device(group.device).draft(group.draft) if group.device else None


def replaying(group: Group, found: Mapping[str, ItemTrace], dilation: float) -> ReplayDrafts:
    # A lookup has no model: it costs a device next to nothing, and does nothing ahead.
    has_model = group.drafter != "lookup"
    speed = speed_of(group) if has_model else None
    looks_ahead = group.look_ahead and has_model
    by_prompt = {trace.prompt_ids: trace for trace in found.values()}
    return ReplayDrafts(by_prompt, speed, rule_of(group), dilation, looks_ahead)


class Factories:
    """Draft models, each loaded once for all devices that run it."""

    def __init__(self, info: ModelInfo, dilation: float) -> None:
        self._info, self._dilation = info, dilation
        self._loaded: dict[tuple[str, str], DrafterFactory] = {}

    def live(self, group: Group) -> LiveDrafts:
        """A drafter of its own for one device, slowed down to the device's pace; loading takes seconds."""
        factory, speed = self._factory(group), speed_of(group)
        if speed is not None:
            factory = PacedFactory(factory, speed, self._dilation)
        rule = rule_of(group)
        return LiveDrafts(factory.create(), rule, self._info.vocab_size, group.look_ahead)

    def _factory(self, group: Group) -> DrafterFactory:
        name = (group.drafter, group.draft_model)
        if name not in self._loaded:
            factory: DrafterFactory = DRAFTERS.get(group.drafter)(group.draft_model, 1)
            factory.fit(self._info)
            self._loaded[name] = factory
        return self._loaded[name]
