"""Single chains of models in the simulator: each path asks the right one, and no hierarchy is slower than it must."""

from dataclasses import replace

import pytest

from lab.testbed.fleet import Group, Hub, Server
from lab.testbed.load.load import Load
from lab.testbed.planner.hierarchy_site import DEVICE, DRAFT, HUB, MIDDLE, Path
from lab.testbed.simulated.hierarchy import (
    BESIDE,
    CENTRALIZED,
    FROM_DEVICE,
    FROM_HUB,
    MIDDLE_BESIDE,
    ON_HUB,
    SINGLE,
    SMALL_ON_HUB,
    THREE_TIERS,
    Recordings,
    Tiers,
    rate,
    simulate_chain,
)
from lab.testbed.tiers import spoken
from opensled.core.errors import UsageError
from tests.lab.made_tiers import made_tiers

TIERS = Tiers(
    Server(accelerator="h200", target="dense-32b", context=1024, others=24),
    Hub(accelerator="strix-halo", target="draft-1.5b", context=1024, link="wan-20"),
    Group(2, "orin-nano-super", "ethernet", draft="135m"),
)
LOAD = Load(warmup=1.0, duration=8.0)
AGREES = Recordings(made_tiers(1.0, 0.9, tokens=60), made_tiers(0.6, 0.9, tokens=60))


def chain(path: Path, *lengths: int, tiers: Tiers = TIERS, recorded: Recordings = AGREES, bound: float = 0.0):
    return simulate_chain(tiers, path, lengths, recorded, bound, LOAD)


@pytest.mark.parametrize("path", [CENTRALIZED, *SINGLE, *ON_HUB])
def test_every_path_answers(path: Path) -> None:
    result = chain(path, *[4] * (len(path) - 1))
    assert rate(result) > 0
    hub = any(place == HUB for _, place in path)
    assert bool(result.hubs.tokens) == hub
    assert any(record.rounds for record in result.requests) == any(place == DEVICE for _, place in path)
    assert bool(result.server.drafting_s) == (path in (BESIDE, MIDDLE_BESIDE))


def test_a_hub_that_agrees_is_faster_than_the_loaded_target_alone() -> None:
    alone = rate(chain(CENTRALIZED))
    assert rate(chain(FROM_HUB, 8)) > 1.2 * alone
    assert rate(chain(FROM_HUB, 8)) > rate(chain(SMALL_ON_HUB, 8))


def test_a_hub_slower_than_the_target_s_stream_leaves_it_the_drive() -> None:
    """So it costs a user next to nothing: the target's own stream is what comes."""
    slow = replace(
        TIERS, hub=replace(TIERS.hub, accelerator="orin-nano-super", target="dense-8b", context=16)
    )
    fast = replace(slow, server=replace(TIERS.server, others=0))
    assert rate(chain(FROM_HUB, 8, tiers=fast)) == pytest.approx(
        rate(chain(CENTRALIZED, tiers=fast)), rel=0.1
    )


def test_devices_spare_a_slow_hub_steps() -> None:
    slow = replace(TIERS, hub=replace(TIERS.hub, accelerator="orin-nano-super", target="draft-3b"))
    three, two = chain(THREE_TIERS, 8, 4, tiers=slow), chain(FROM_HUB, 8, tiers=slow)
    assert three.hubs.steps / three.hubs.tokens < 0.7 * two.hubs.steps / two.hubs.tokens


def test_a_device_drafts_over_both_links() -> None:
    far = replace(TIERS, hub=replace(TIERS.hub, link="wan-150"))
    assert rate(chain(FROM_DEVICE, 4, tiers=far)) < 0.6 * rate(chain(FROM_DEVICE, 4))


def test_the_middle_model_drafts_what_it_writes() -> None:
    item, said = AGREES.small.items[0], spoken(AGREES.small).items[0]
    for place, proposal in enumerate(said.proposals):
        expected = item.vetted_after(item.target_ids[:place])
        assert proposal.ids[: len(expected)] == expected[:8]
    right = chain(MIDDLE_BESIDE, 4).server
    assert right.tokens / right.step_sessions > 3.5  # of a block of four that stands, with its bonus token


def test_what_is_no_chain_is_refused() -> None:
    with pytest.raises(UsageError, match="no chain"):
        chain((*THREE_TIERS, (DRAFT, HUB)), 4, 4, 4)
    with pytest.raises(UsageError, match="no chain"):
        chain(FROM_HUB)
    with pytest.raises(UsageError, match="does not fit"):
        chain(FROM_HUB, 4, tiers=replace(TIERS, hub=replace(TIERS.hub, target="dense-70b", weight_bits=16.0)))


def test_the_middle_model_may_draft_on_the_device() -> None:
    path: Path = (*CENTRALIZED, (MIDDLE, DEVICE))
    assert rate(chain(path, 4)) > 0
