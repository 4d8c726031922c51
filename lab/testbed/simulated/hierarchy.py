"""One chain of models, simulated: the models, their places, and the lengths of the blocks between them.

    result = simulate_chain(tiers, ((TARGET, CLOUD), (MIDDLE, HUB), (DRAFT, DEVICE)), (8, 4), recordings, load)

Under policy `fcfs` block lengths are those given, and every model waits for the drafts of the one below, as
the law of chains has it (hw_profiles/hierarchy.py). Under `goodput` they are the most that is asked for. A server
streams until its first draft comes, as the product's does, so a chain whose hub is slower than the target's own stream
is never asked for anything, and the user reads that stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as File
from statistics import fmean
from typing import NamedTuple

from lab.testbed.fleet import Fleet, Group, Hub, Server
from lab.testbed.load.load import Load
from lab.testbed.load.records import RunResult
from lab.testbed.load.slo import paces
from lab.testbed.planner.hierarchy_site import CLOUD, DEVICE, DRAFT, HUB, MIDDLE, TARGET, Path
from lab.testbed.recordings import BUNDLED
from lab.testbed.simulator import simulate
from lab.testbed.tiers import SMALL, TIERS, joined, read_hub, spoken
from lab.testbed.traces import TraceSet, read_traces
from opensled.core.errors import UsageError

PATIENCE_S = 2.0  # that a server, or a hub whose devices draft, waits for a draft that is under way
LOAD = Load(warmup=3.0, duration=30.0)

CENTRALIZED: Path = ((TARGET, CLOUD),)
FROM_DEVICE: Path = ((TARGET, CLOUD), (DRAFT, DEVICE))
BESIDE: Path = ((TARGET, CLOUD), (DRAFT, CLOUD))
MIDDLE_BESIDE: Path = ((TARGET, CLOUD), (MIDDLE, CLOUD))
FROM_HUB: Path = ((TARGET, CLOUD), (MIDDLE, HUB))
SMALL_ON_HUB: Path = ((TARGET, CLOUD), (DRAFT, HUB))
THREE_TIERS: Path = ((TARGET, CLOUD), (MIDDLE, HUB), (DRAFT, DEVICE))
SINGLE = (FROM_DEVICE, BESIDE, MIDDLE_BESIDE)  # one draft model, and no relay
ON_HUB = (FROM_HUB, SMALL_ON_HUB, THREE_TIERS)


@dataclass(frozen=True)
class Tiers:
    """A cloud, hubs far from it, and the devices beside each hub."""

    server: Server
    hub: Hub  # with `link`, the way to the server; its `target` and `weight_bits` are the middle model's
    device: Group  # all of one kind; its `link` is the way to the hub, its `draft` the small model's size

    @property
    def readers(self) -> Group:
        """The devices when they only read, past the hub."""
        return replace(self.device, drafter="none", direct=True, link=self.whole_way)

    @property
    def whole_way(self) -> str:
        """From a device to the server."""
        return "+".join(filter(None, (self.device.link, self.hub.link)))

    @property
    def middle(self) -> str:
        """The middle model as a size of draft."""
        return self.hub.target.removeprefix("draft-")


class Recordings(NamedTuple):
    """What the three models wrote."""

    tiers: TraceSet  # the middle model on the hub
    small: TraceSet  # the small model on the hub


def recordings(tiers: File = TIERS, small: File = SMALL, drafts: File = BUNDLED) -> Recordings:
    """Those that are packaged. Raises UsageError for a file that is not there, or belongs to other texts."""
    traces = read_traces(drafts)
    return Recordings(joined(traces, read_hub(tiers)), joined(traces, read_hub(small)))


def simulate_chain(
    tiers: Tiers,
    path: Path,
    lengths: Sequence[int],
    recorded: Recordings,
    bound: float = 0.0,
    load: Load = LOAD,
    policy: str = "fcfs",
) -> RunResult:
    """`path`: models and places from the target down; `lengths`: tokens of a block between each two of them; `bound`:
    see `relay.uplink.VettedBlocks`; `policy`: of server and hub. Raises UsageError for a path that no product can go,
    or a model that does not fit.
    """
    if path not in (CENTRALIZED, *SINGLE, *ON_HUB, _MIDDLE_DEVICE) or len(lengths) != len(path) - 1:
        raise UsageError(f"{path} with {len(lengths)} lengths is no chain that can be simulated")
    fleet, traces = fleet_of(tiers, path, lengths, bound, policy), traces_of(path, recorded)
    return simulate(fleet, traces, load)


_MIDDLE_DEVICE: Path = ((TARGET, CLOUD), (MIDDLE, DEVICE))


def fleet_of(
    tiers: Tiers, path: Path, lengths: Sequence[int], bound: float = 0.0, policy: str = "fcfs"
) -> Fleet:
    """The devices, hubs and server of a path."""
    server = replace(tiers.server, policy=policy, draft_wait=PATIENCE_S, draft="")
    if path == CENTRALIZED:
        return Fleet(server, (tiers.readers,))
    (model, place), first = path[1], lengths[0]
    size = tiers.middle if model == MIDDLE else tiers.device.draft
    if place == CLOUD:
        return Fleet(replace(server, draft=size, draft_length=first), (tiers.readers,))
    if place == DEVICE:
        direct = replace(tiers.readers, drafter="llamacpp", draft=size, draft_length=first, look_ahead=True)
        return Fleet(server, (direct,))
    hub = replace(tiers.hub, target=f"draft-{size}" if model == DRAFT else tiers.hub.target)
    hub = replace(hub, policy=policy, draft_wait=PATIENCE_S, block=first, bound=bound)
    below = replace(tiers.device, drafter="none")
    if len(path) > 2:
        below = replace(tiers.device, drafter="llamacpp", draft_length=lengths[1], look_ahead=True)
    return Fleet(server, (below,), hub=hub)


def traces_of(path: Path, recorded: Recordings) -> TraceSet:
    """What the models of a path wrote."""
    if path in (MIDDLE_BESIDE, _MIDDLE_DEVICE):
        return spoken(recorded.tiers)
    return recorded.small if path == SMALL_ON_HUB else recorded.tiers


def rate(result: RunResult) -> float:
    """Tokens/s of a user from the first token of an answer to the last, a mean over users."""
    return fmean(paces(result).values())
