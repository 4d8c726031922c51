"""What a device says of its drafts never contradicts its own numbers, in chat, page and API alike."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.gate import TRIAL
from edge_client.lengths.words import Decision, drafting_words, measured, rested, resting_words
from hw_profiles.sysfs import BoardState
from opensled.answer import Task
from opensled.drafting.status import DraftStatus
from opensled.messages import DraftBlock, DraftToken
from opensled.printable import digits
from tests.devices import read
from tests.serving import GREEDY, PROMPT
from tests.test_page_view import CONFIG, page_of, shown

RATES = st.floats(0.5, 2000)


@pytest.mark.parametrize(
    ("value", "two", "three"),
    [
        (0.912, "0.91", "0.912"), (0.996, "1.0", "0.996"), (4.85, "4.8", "4.85"), (9.94, "9.9", "9.94"),
        (9.96, "10", "9.96"), (35.2, "35", "35.2"), (123.4, "123", "123"), (1234.0, "1,234", "1,234"),
        (0, "0", "0"),
    ],
)  # fmt: skip
def test_two_digits_count(value, two, three):
    assert (digits(value), digits(value, 3)) == (two, three)


@given(expected=RATES, servers=RATES)
def test_who_is_said_to_be_faster_is_faster(expected, servers):
    """Also within the margin, where both round to the same number with two digits."""
    words = resting_words(Decision(expected, servers))
    said = re.search(r"faster, ([\d.,]+) against ([\d.,]+) tokens/s", words)
    assert bool(said) == (servers > expected)
    if said and servers > expected * 1.05:
        first, second = (float(each.replace(",", "")) for each in said.groups())
        assert first > second


@given(expected=RATES, servers=RATES)
def test_drafts_that_go_on_though_the_server_is_faster_say_why(expected, servers):
    words = drafting_words(Decision(expected, servers, lead=0.1), 4, right=3, drafted=8)
    assert ("too close to stop: drafts rest once it leads by 10 %" in words) == (servers > expected)


def policy_at(now):
    return Adaptive(clock=lambda: now[0], board=BoardState)


def rounds(rule, now, count, accepted, seconds):
    """Blocks of four, of which `accepted` tokens stand, a round taking so long."""
    for base in range(count):
        rule.most(8)
        now[0] += seconds
        rule.drafted(4, 0.001)
        rule.answered(DraftBlock(base, (DraftToken(1),) * 4), accepted, seconds)


def test_a_trial_of_drafts_is_said_to_be_one():
    """Its rounds raise the expectation above the server's rate: the words of a rest would say the opposite."""
    now = [0.0]
    rule = policy_at(now)
    rounds(rule, now, 8, accepted=0, seconds=0.1)
    rule.streamed(200, 5.0)  # 40 tokens/s
    assert rule.most(8) == 0 and rule.status.words.startswith(
        "not drafting: the server alone is faster, 40 against"
    )
    now[0] += 60
    assert rule.most(8) > 0 and "a short trial now" in rule.status.words
    rounds(rule, now, TRIAL - 1, accepted=4, seconds=0.02)
    status = rule.status
    assert status.expected_rate > status.server_rate and "faster" not in status.words
    rounds(rule, now, 1, accepted=4, seconds=0.02)
    assert rule.status.drafting and rule.status.words.startswith("k = ")


def test_what_a_trial_has_decided_is_said_at_its_end():
    """Not at the next question, which may be minutes away."""
    now = [0.0]
    rule = policy_at(now)
    rounds(rule, now, 8, accepted=0, seconds=0.1)
    rule.streamed(200, 5.0)
    rule.most(8)
    now[0] += 60
    rounds(rule, now, TRIAL, accepted=0, seconds=0.1)
    assert not rule.status.drafting and "faster, 40 against" in rule.status.words


def test_a_battery_that_is_charged_again_is_forgotten():
    board = [BoardState(battery_percent=10, discharging=True)]
    rule = Adaptive(clock=lambda: 0.0, board=lambda: board[0])
    assert rule.most(8) == 0 and "battery" in rule.status.words
    board[0] = BoardState(battery_percent=90)
    assert rule.most(8) > 0 and rule.status.drafting and "battery" not in rule.status.words


def test_a_server_that_wants_no_drafts_is_not_said_to_be_faster():
    """It may be slower for this user: then the device tells what it expected."""
    status = rested(DraftStatus(True, "k = 4", 4, expected_rate=19.0, server_rate=14.0))
    assert (
        not status.drafting
        and "faster" not in status.words
        and status.words.endswith("19 tokens/s with drafts")
    )
    assert "expected" not in rested(DraftStatus(True, "k = 4", 4, expected_rate=9.0, server_rate=14.0)).words


def test_one_baseline_for_both_gains():
    status = measured(DraftStatus(True, "k = 4", 4, expected_rate=42.0, server_rate=35.0), 28.0, plain=70.0)
    figures = status.figures()
    assert figures["server_rate"] == 35.0  # the one that the policy goes by
    assert figures["expected_gain"] == pytest.approx(1.2) and figures["measured_gain"] == pytest.approx(0.8)
    assert status.words == "k = 4; whole answers with drafts still came at 28 tokens/s"
    resting = measured(
        DraftStatus(False, "not drafting", 0, expected_rate=11.0, server_rate=23.0), 31.0, None
    )
    assert resting.words == "not drafting; earlier answers with some drafts came at 31 tokens/s"
    heard_none = measured(DraftStatus(True, "k = 4 at most, as told", 4), 28.0, plain=70.0)
    assert heard_none.server_rate == 70.0 and heard_none.figures()["measured_gain"] == pytest.approx(0.4)
    assert measured(DraftStatus(True, "k = 4", 4), None, None).figures()["measured_gain"] is None


def test_a_new_target_is_compared_with_no_other_ones_rate():
    """And what was learned of the old one does not decide about the new one."""
    now = [0.0]
    rule = policy_at(now)
    rounds(rule, now, 8, accepted=4, seconds=0.02)
    rule.streamed(200, 1.0)
    assert rule.status.server_rate is None or rule.status.expected_rate
    rule.forget()
    assert rule.status == policy_at(now).status and rule.learned() is None

    async def scenario():
        async with page_of() as (device, view, _):
            device._lengths = rule
            await read(device, Task(PROMPT, GREEDY))
            await read(device, Task(PROMPT, GREEDY, drafts=False))
            assert shown(view)["draft"]["measured_rate"] and shown(view)["draft"]["server_rate"]

            async def another(*_):
                return type(
                    "Target", (), {"info": replace(device.info, model_id="b"), "tokenizer": device.tokenizer}
                )

            import edge_client.device as module

            before, module.fetch_target = module.fetch_target, another
            try:
                await device._update_target()
            finally:
                module.fetch_target = before
            draft = shown(view)["draft"]
            assert draft["measured_rate"] is draft["server_rate"] is draft["measured_gain"] is None

    asyncio.run(scenario())


def test_an_answers_rate_is_the_rate_that_gains_go_by():
    async def scenario():
        async with page_of() as (device, view, _):
            (*_, last) = await read(device, Task(PROMPT, GREEDY))
            assert last.stats.tokens_per_second == pytest.approx(device.status.measured_rate)
            assert last.stats.figures()["tokens_per_second"] == pytest.approx(
                shown(view)["draft"]["measured_rate"], abs=0.01
            )

    asyncio.run(scenario())


def test_a_device_without_a_drafter_does_not_draft():
    async def scenario():
        async with page_of(CONFIG) as (device, _, _):
            device.drafter_name, device._lengths = "none", FixedLength(4)
            assert not device.status.drafting and device.status.length == 0
            assert device.status.words == "not drafting: this device has nothing to draft with"

    asyncio.run(scenario())
