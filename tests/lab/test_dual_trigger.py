"""PipeSD's dual trigger: blocks by hand, and as a baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_client.lengths.base import pull_tokens
from lab.testbed.baselines import BASELINES, LONGEST, OF_HEADS, PARTS, PIPESD, USUAL
from lab.testbed.dual_trigger import NEWEST, PRODUCT, DualTrigger
from lab.testbed.fleet import Fleet, Group, Server, read_fleet
from lab.testbed.load.load import Load
from lab.testbed.rules import rule_of
from lab.testbed.simulator import simulate
from lab.testbed.traces import ItemTrace
from lab.testbed.tuning import TRIGGERS, Tuning
from opensled.core.errors import UsageError
from opensled.core.messages import DraftToken
from opensled.core.protocol import common_prefix
from tests.lab.made_traces import made

HUB = Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=512)
BESIDE = Group(1)  # no link, and a draft model that takes no time
SHORT = Load(warmup=1.0, duration=20.0)
TRACES = made()


def block(rule: DualTrigger, *confidences: float) -> tuple[int, int]:
    """(tokens sent, tokens drafted) of a drafter with these confidences."""
    drafted = []

    def propose():
        for index, confidence in enumerate(confidences):
            drafted.append(index)
            yield DraftToken(index, confidence)

    sent = list(pull_tokens(rule, propose(), rule.most(16), lambda: False))
    return len(sent), len(drafted)


@pytest.mark.parametrize(
    ("confidences", "tokens"),
    [
        ((0.9, 0.8, 0.9, 0.9), 4),  # 0.58: neither fires
        ((0.9, 0.4, 0.9, 0.9), 2),  # 0.4 is not above R2
        ((0.9, 0.39, 0.9, 0.9), 2),
        ((0.9, 0.41, 0.9, 0.9), 4),  # 0.369, 0.332, 0.299: above R1
        ((0.5, 0.5, 0.9, 0.9), 2),  # 0.25: both halves are above R2, their product is not above R1
        ((0.6, 0.6, 0.8, 0.9), 4),  # 0.36, 0.288, 0.2592
        ((0.6, 0.6, 0.6, 0.9), 3),  # 0.36, 0.216
        ((0.1, 0.9, 0.9, 0.9), 1),  # the first token is sent however doubtful it is
    ],
)
def test_a_block_ends_after_the_token_that_fires_a_trigger(confidences, tokens):
    """And nothing is drafted after it: the doubtful token is verified, not thrown away as by `confidence`."""
    assert block(DualTrigger(8, product=0.25, newest=0.4), *confidences) == (tokens, tokens)


def test_each_trigger_is_enough_alone():
    by_product, by_newest = DualTrigger(8, product=0.5, newest=0), DualTrigger(8, product=0, newest=0.5)
    assert block(by_product, 0.8, 0.8, 0.8, 0.8, 0.8) == (4, 4)  # 0.64, 0.512, 0.4096
    assert block(by_newest, 0.8, 0.8, 0.8, 0.8, 0.8) == (5, 5)
    assert block(by_newest, 0.8, 0.5, 0.8, 0.8, 0.8) == (2, 2)


def test_the_product_begins_anew_with_each_block():
    rule = DualTrigger(8, product=0.5, newest=0.1)
    assert [block(rule, 0.8, 0.8, 0.7, 0.8)[0] for _ in range(3)] == [3, 3, 3]


def test_length_hint_and_room_bind_where_no_trigger_fires():
    rule = DualTrigger(5, product=0.1, newest=0.1)
    assert block(rule, *[1.0] * 9) == (5, 5)
    assert (rule.most(3), rule.most(16, 2), rule.most(16, 9), rule.most(16, 0)) == (3, 2, 5, 0)
    assert rule.nodes(16) == 0


def test_it_says_what_it_does():
    told = DualTrigger(6, product=0.3, newest=0.5)
    assert told.needs_confidence
    assert told.ending.endswith("until their confidences multiply to 0.3 or one is 0.5")


# -- the baseline -----------------------------------------------------------------------------------------------


def test_devices_of_the_baseline_have_the_rule_at_a_server_that_waits_for_none():
    fleet = BASELINES[PIPESD](Fleet(HUB, (replace(BESIDE, draft_length=2, pace=9, confidence=0.7),)))
    (group,) = fleet.groups
    usual = DualTrigger(LONGEST, product=PRODUCT, newest=NEWEST)
    assert rule_of(group) == usual
    assert (group.pace, fleet.server.policy) == (0.0, "fcfs")
    assert {*BASELINES} - {*USUAL} == {PIPESD, *PARTS, *OF_HEADS}


def test_tuned_thresholds_stay():
    fleet = BASELINES[PIPESD](Tuning(3, 0.2, 0.6).of(Fleet(HUB, (BESIDE,))))
    assert rule_of(fleet.groups[0]) == DualTrigger(LONGEST, product=0.2, newest=0.6)
    assert Tuning(3).of(Fleet(HUB, (BESIDE,))) == Fleet(HUB, (replace(BESIDE, draft_length=3),))


def test_sixteen_samples_and_each_has_both_triggers():
    """R1 counts only up to R2: no product is above its newest factor."""
    assert len(set(TRIGGERS)) == 16
    assert all(0 < each.product <= each.newest < 1 for each in TRIGGERS)


def test_a_fleet_file_names_the_rule(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text('[[device]]\nstop = "dual-trigger"\nproduct = 0.3\nconfidence = 0.5\n')
    (group,) = read_fleet(path).groups
    assert rule_of(group) == DualTrigger(4, product=0.3, newest=0.5)
    path.write_text('[[device]]\nstop = "dual-trigger"\nproduct = 3.0\n')
    with pytest.raises(UsageError, match="within 0 and 1"):
        read_fleet(path)


def rounds_by_hand(item: ItemTrace, product: float, newest: float) -> list[tuple[int, int]]:
    """Drafted and accepted tokens of each round; the last token of a text that could go on needs no draft."""
    longest = max(len(each.target_ids) for each in TRACES.items)
    place, rounds = 0, []
    while place < len(item.target_ids):
        drafted, all_of_them = 0, 1.0
        proposal = item.proposals[place]
        for confidence in proposal.confidences[: longest - place - 1]:
            drafted, all_of_them = drafted + 1, all_of_them * confidence
            if all_of_them <= product or confidence <= newest:
                break
        accepted = common_prefix(proposal.ids[:drafted], item.target_ids[place:])
        if drafted:
            rounds.append((drafted, accepted))
        place += accepted + 1
    return rounds


@pytest.mark.parametrize(("product", "newest"), [(0.3, 0.5), (0.05, 0.45), (0.6, 0.6)])
def test_simulated_rounds_are_those_that_the_traces_imply(product, newest):
    """And the text of each answer is whole: drafts never change it."""
    fleet = BASELINES[PIPESD](Tuning(LONGEST, product, newest).of(Fleet(HUB, (BESIDE,))))
    items = {item.item: item for item in TRACES.items}
    records = [record for record in simulate(fleet, TRACES, SHORT).requests if record.finish_reason]
    assert len({record.item for record in records}) > 5
    for record in records:
        item = items[record.item]
        assert [(each.drafted, each.accepted) for each in record.rounds] == rounds_by_hand(
            item, product, newest
        )
        assert record.tokens == len(item.target_ids)
