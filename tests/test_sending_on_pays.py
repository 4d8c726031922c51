"""When a device sends on before the verdict: the rule `adaptive`, and what it learns from blocks that overlap."""

from __future__ import annotations

import pytest

from edge_client.config import DeviceConfig
from edge_client.device import _length_policy
from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.verdict_times import OPEN_BLOCKS, VerdictTimes
from hw_profiles.sysfs import BoardState
from opensled.messages import DraftBlock, DraftToken

TOKEN_S, ROUND_S = 0.005, 0.2


def rule_after(rounds: int, accepted: int = 4, clock=None, **options) -> Adaptive:
    """The rule after rounds of four tokens on a long link."""
    now = [0.0]
    rule = Adaptive(clock=clock or (lambda: now[0]), board=BoardState, **options)
    for number in range(rounds):
        rule.most(16)
        rule.drafted(4, 4 * TOKEN_S)
        now[0] += 4 * TOKEN_S + ROUND_S
        rule.answered(DraftBlock(10 + 5 * number, (DraftToken(1),) * 4), accepted, ROUND_S)
    return rule


def test_a_device_sends_on_once_it_knows_its_link_and_its_drafts():
    assert rule_after(0).sends_on(4, 16) == 0
    assert rule_after(20).sends_on(4, 16) > 0
    assert rule_after(20).sends_on(4, 2) == 2, "no more than there is room for"
    assert rule_after(20).sends_on(4, 16, hint=3) <= 3
    assert rule_after(20).sends_on(4, 16, hint=0) == 0 and rule_after(20).sends_on(4, 0) == 0


def test_a_device_does_not_send_on_to_a_server_that_is_busy_with_the_block_before():
    """Its steps, as it is heard to decode alone, are all that a round takes."""
    rule = rule_after(20)
    for _ in range(20):
        rule.streamed(1, ROUND_S)
    assert rule.sends_on(4, 16) == 0


def test_a_device_with_poor_drafts_waits_for_its_verdicts():
    assert rule_after(20, accepted=0).sends_on(4, 16) == 0


def test_a_device_that_may_not_or_does_not_look_ahead_never_sends_on():
    assert rule_after(20, send_on=False).sends_on(4, 16) == 0
    assert rule_after(20, look_ahead=False).sends_on(4, 16) == 0
    empty = BoardState(battery_percent=5.0, discharging=True)
    rule = rule_after(20)
    rule._state = empty
    assert rule.sends_on(4, 16) == 0


def test_overlapping_rounds_teach_the_times_of_rounds_and_not_of_drafting():
    """A block that was sent before the verdict on the last one took a round, and no drafting."""
    now = [0.0]
    rule = Adaptive(clock=lambda: now[0], board=BoardState)
    base, sent_at = 10, 0.0
    for number in range(40):
        now[0] = ROUND_S + number * ROUND_S / 2
        rule.answered(DraftBlock(base, (DraftToken(1),) * 4), 4, now[0] - sent_at)
        base, sent_at = base + 5, now[0] - ROUND_S / 2
    times = rule._times
    assert times.mean_s == pytest.approx(ROUND_S, rel=0.01)
    assert times.base_s == pytest.approx(ROUND_S, rel=0.05) and times.hidden < 0.1


def test_hits_are_counted_whether_the_verdict_was_waited_for_or_not():
    rule = rule_after(20)
    before = rule._hit_rate.ratio
    for _ in range(10):
        rule.continued(True)
    assert rule._hit_rate.ratio > before
    after = rule._hit_rate.ratio
    rule.continued(False)
    assert rule._hit_rate.ratio == after


def test_the_rules_that_do_not_measure_never_send_on():
    assert FixedLength(4).sends_on(4, 16) == 0


@pytest.mark.parametrize(("option", "wanted"), [("auto", True), ("off", False)])
def test_the_option_reaches_the_rule(option, wanted):
    rule = _length_policy(DeviceConfig(send_on=option))
    assert isinstance(rule, Adaptive) and rule._send_on == wanted


def test_the_time_until_a_block_is_negative_where_it_did_not_wait():
    times = VerdictTimes()
    times.came(10, 5.0)
    assert times.until(10, 4.9, 0.1) == pytest.approx(-0.1)
    assert times.until(10, 5.2, 0.1) == 0.1, "each verdict has one next block"
    times.came(10, 5.0)
    assert times.until(10, 50.0, 0.1) == 0.1, "of another answer"
    for base in range(OPEN_BLOCKS + 1):
        times.came(base, 1.0)
    assert times.until(0, 1.3, 0.1) == 0.1 and times.until(1, 1.3, 0.1) == pytest.approx(0.3)
