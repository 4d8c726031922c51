"""What a device says of its drafts never contradicts its own numbers, in chat, page and API alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from edge_client.lengths.words import NOT_WANTED, draft_status
from opensled.core.answer import Task
from opensled.core.messages import Limits
from opensled.core.printable import digits
from opensled.drafting.status import DraftStatus
from tests.devices import read
from tests.serving import PROMPT
from tests.test_page_view import CONFIG, LONG, page_of, shown


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


@pytest.mark.parametrize(
    ("policy", "hint", "words"),
    [
        (HintLength(), None, "k = 4: the server has given no hint"),
        (HintLength(), 8, "k = 8 by the server's hint"),
        (HintLength(2), 8, "k = 2 at most, the server's hint is 8"),
        (HintLength(tree=60), 8, "k = 8 by the server's hint, trees of 60 where the drafter has them"),
        (FixedLength(6), 4, "k = 4 by the server's hint"),
        (ConfidenceLength(8), None, "k = 8: the server has given no hint, until a token below 0.4"),
        (HintLength(), 0, f"not drafting: {NOT_WANTED}"),
    ],
)
def test_it_says_how_much_it_drafts_and_why(policy, hint, words):
    assert draft_status(policy, Limits(16, 1000, max_tree=64), hint).words == words


def test_a_gain_is_known_once_both_rates_are():
    assert DraftStatus(True, "k = 4", 4, 28.0, 70.0).figures()["gain"] == pytest.approx(0.4)
    assert DraftStatus(True, "k = 4", 4, 28.0).gain is DraftStatus(True, "k = 4", 4).gain is None


def test_a_new_target_is_compared_with_no_other_ones_rate():
    async def scenario():
        async with page_of() as (device, view, _):
            await read(device, Task(PROMPT, LONG))
            await read(device, Task(PROMPT, LONG, drafts=False))
            assert shown(view)["draft"]["drafted_rate"] and shown(view)["draft"]["plain_rate"]

            async def another(*_):
                return type(
                    "Target", (), {"info": replace(device.info, model_id="b"), "tokenizer": device.tokenizer}
                )

            import edge_client.device.device as module

            before, module.fetch_target = module.fetch_target, another
            try:
                await device._update_target()
            finally:
                module.fetch_target = before
            draft = shown(view)["draft"]
            assert draft["drafted_rate"] is draft["plain_rate"] is draft["gain"] is None

    asyncio.run(scenario())


def test_an_answers_rate_is_the_rate_that_gains_go_by():
    async def scenario():
        async with page_of() as (device, view, _):
            (*_, last) = await read(device, Task(PROMPT, LONG))
            assert last.stats.tokens_per_second == pytest.approx(device.status.drafted_rate)
            assert last.stats.figures()["tokens_per_second"] == pytest.approx(
                shown(view)["draft"]["drafted_rate"], abs=0.01
            )

    asyncio.run(scenario())


def test_a_device_without_a_drafter_does_not_draft():
    async def scenario():
        async with page_of(CONFIG) as (device, _, _):
            device.drafter_name, device._lengths = "none", FixedLength(4)
            assert not device.status.drafting and device.status.length == 0
            assert device.status.words == "not drafting: this device has nothing to draft with"

    asyncio.run(scenario())
