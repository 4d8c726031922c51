"""The law's setting of a fleet: its profiles, and what its drafts are worth."""

from dataclasses import dataclass
from functools import cache
from math import inf
from statistics import fmean

from hw_profiles import catalog
from lab.testbed.baselines import BASELINES, C_TH, SERVER_SD
from lab.testbed.emulation.draft_head import DraftCost
from lab.testbed.fleet import Fleet, Server
from lab.testbed.planner.acceptance import DraftWorth, by_place, of_traces
from lab.testbed.planner.capacity_law import Setting
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.traces import TraceSet
from opensled.core.errors import NotFound, UsageError


@dataclass(frozen=True)
class Work:
    """What is asked and how well it is drafted: means over a workload."""

    acceptance: DraftWorth
    guarded: DraftWorth  # with SLED's confidence threshold
    held: float = 0.0  # KV positions that a request adds to its session, half of its answer included
    prompt: float = 0.0  # tokens of a prompt that must be computed
    answer: float = inf  # tokens of an answer


def assumed(*rates: float) -> Work:
    """Drafts of which such a share is accepted at each position; nothing is known of their confidence."""
    return Work(by_place(*rates), by_place(*rates))


def recorded(traces: TraceSet) -> Work:
    """A recorded workload with its drafts, its prompts and the lengths of its answers."""
    prompt = fmean(len(item.prompt_ids) for item in traces.items)
    answer = fmean(len(item.target_ids) for item in traces.items)
    return Work(of_traces(traces), of_traces(traces, C_TH), prompt + answer / 2, prompt, answer)


@cache
def recorded_work(source: RecordedDrafts) -> Work:
    """The workload that `source` replays; raises UsageError for a pair not recorded."""
    return recorded(traces_of(source))


def work_of(source: RecordedDrafts) -> Work:
    """Only what its drafts are worth, for the workload is the user's own; raises UsageError for a pair not recorded."""
    if source.rates:
        return assumed(*source.rates)
    found = recorded_work(source)
    return Work(found.acceptance, found.guarded)


def of_fleet(fleet: Fleet, work: Work, beside: str = SERVER_SD) -> Setting:
    """For a fleet whose devices all are of one kind; raises UsageError for one that has no profiles.

    `beside`: the baseline that says what drafts beside the target.
    """
    (group,) = fleet.groups
    if not (fleet.server.accelerator and group.device and group.link):
        raise UsageError("a plan needs the profiles of an accelerator, a device and a link")
    speed, link = catalog.device(group.device).draft(group.draft), catalog.link(group.link)
    return Setting(
        cost=fleet.server.cost,
        draft_cost=_draft_cost(BASELINES[beside](fleet).server),
        speed=speed,
        link=link,
        context=round(fleet.server.context + work.held),
        reserved=fleet.server.context,
        acceptance=work.acceptance,
        guarded=work.guarded,
        prompt=work.prompt,
        answer=work.answer,
    )


def _draft_cost(server: Server) -> DraftCost | None:
    """Of the draft beside the target; None for a size that only devices know."""
    try:
        return server.draft_cost
    except NotFound:
        return None
