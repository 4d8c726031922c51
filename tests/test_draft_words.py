"""What a device says of its drafts never contradicts its own numbers, in chat, page and API alike."""

from dataclasses import replace

import pytest

from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from edge_client.lengths.words import draft_status
from opensled.core.answer import Task
from opensled.core.messages import HintReason, Limits
from opensled.core.printable import digits
from opensled.core.turns import Turn
from opensled.drafting.status import ENOUGH, NOT_TOLD, DraftStatus
from tests.devices import read
from tests.page_world import CONFIG, LONG, page_of, shown
from tests.serving import PROMPT


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


ASKED, OWN = "; the server asks for them", "; the server leaves their length to this device"
NUMBERS = HintReason("", 4, 3.1, 0.9, 15.0, 22.0, 0.12, 0.4)


@pytest.mark.parametrize(
    ("policy", "turn", "words"),
    [
        (HintLength(), None, "drafts of 4 tokens; not tried yet"),
        (HintLength(), Turn(), f"drafts of 4 tokens{OWN}"),
        (HintLength(), Turn(8), f"drafts of 8 tokens{ASKED}"),
        (HintLength(), Turn(1), f"drafts of 1 token{ASKED}"),
        (HintLength(2), Turn(8), "drafts of 2 tokens; the server would take 8"),
        (HintLength(tree=60), Turn(8), f"drafts of 8 tokens, trees of 60 where the drafter has them{ASKED}"),
        (FixedLength(6), Turn(4), f"drafts of 4 tokens{ASKED}"),
        (ConfidenceLength(8), Turn(), f"drafts of 8 tokens, fewer where it is less than 40% sure{OWN}"),
        *((FixedLength(4), Turn(0, NUMBERS._replace(cause=cause)), f"not drafting: {words}") for cause, words in (
            ("step", "a step over 5 tokens takes 3.1 times one over 1 here: drafts would give 0.90x"),
            ("device", "this device drafts 15 tokens/s, and the server writes 22: drafts would give 0.90x"),
            ("link", "a draft is 120 ms on its way, and the server writes 22 tokens/s: drafts would give 0.90x"),
            ("acceptance", "the target would accept 0.40 of 4 draft tokens: drafts would give 0.90x"),
            ("others", "drafts of this device would slow other users of the server down"),
            ("operator", "rested by the server's operator"),
            ("quota", "as much as the server verifies for this user is used up for the moment"),
            ("rejected", "the target rejected nearly all of its drafts; now and then it is tried again"),
            ("untried", "no draft of it has come in time yet, and it is asked again soon"),
            ("request", "the latest answer could not use drafts"),
            ("", NOT_TOLD), ("of a newer server", NOT_TOLD),
        )),
        (HintLength(), Turn(0), f"not drafting: {NOT_TOLD}"),
    ],
)  # fmt: skip
def test_it_says_how_much_it_drafts_and_why(policy, turn, words):
    assert draft_status(policy, Limits(16, 1000, max_tree=64), turn).words == words


def test_a_server_that_takes_no_drafts_says_so():
    assert draft_status(HintLength(), Limits(0, 9), None).words == "not drafting: the server takes no drafts"


@pytest.mark.parametrize("rates", [(28.0, None), (None, 70.0), (None, None), (28.0, 70.0)])
@pytest.mark.parametrize("compared", [0, ENOUGH - 1, ENOUGH])
def test_a_gain_is_told_once_enough_was_timed_of_both(rates, compared):
    status = DraftStatus(True, "", 4, *rates, compared)
    known = all(rates) and compared >= ENOUGH
    assert status.figures()["gain"] == (pytest.approx(0.4) if known else None)
    assert status.gain_words.startswith("0.40x" if known else f"not enough yet: {compared} of 200 tokens")


async def test_a_new_target_is_compared_with_no_other_ones_rate():
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


async def test_an_answers_rate_is_the_rate_that_gains_go_by():
    async with page_of() as (device, view, _):
        (*_, last) = await read(device, Task(PROMPT, LONG))
        assert last.stats.tokens_per_second == pytest.approx(device.status.drafted_rate)
        assert last.stats.figures()["tokens_per_second"] == pytest.approx(
            shown(view)["draft"]["drafted_rate"], abs=0.01
        )


async def test_a_device_without_a_drafter_does_not_draft():
    async with page_of(CONFIG) as (device, _, _):
        device.drafter_name, device._lengths = "none", FixedLength(4)
        assert not device.status.drafting and device.status.length == 0
        assert device.status.words == "not drafting: this device has nothing to draft with"
