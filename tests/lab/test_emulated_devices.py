"""Emulated devices: replayed or real, their time is the profile's and their blocks are the real drafter's."""

import asyncio
from contextlib import closing

import pytest

from edge_client.drafters import DRAFTERS
from edge_client.drafters.none import NoneFactory
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.round.draft_job import BlockBudget, Drafted
from edge_client.round.drafting import DraftThread
from lab.testbed.emulation import paced
from lab.testbed.emulation.paced import PacedFactory
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.emulation.replay import ReplayDrafts
from lab.testbed.traces import PACKAGED, ItemTrace, Proposal, read_traces
from opensled.core.errors import EngineError
from opensled.core.messages import DraftBlock, SamplingParams, Verdict
from opensled.core.noise import noise_key
from opensled.core.protocol import Truth, common_prefix
from opensled.core.sampling import Sampler
from tests.by_hand import HandLoop
from tests.drafter_contract import DrafterContract
from tests.emulated import HandClock, speed

GREEDY = Sampler(SamplingParams(temperature=0), bytes(16))


@pytest.fixture
def clock(monkeypatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(paced, "time", clock)
    return clock


# -- devices that replay ----------------------------------------------------------------------------------------

PROMPT = tuple(range(1, 41))
TEXT = (50, 51, 52, 53, 54, 55, 56, 57)


def trace_of(wrong: int = 99) -> ItemTrace:
    """A drafter that is right twice and then wrong, and sure of its first three tokens."""
    proposals = tuple(
        Proposal((*TEXT[place : place + 2], wrong, wrong), (0.9, 0.8, 0.6, 0.2)) for place in range(len(TEXT))
    )
    return ItemTrace("item", PROMPT, TEXT, "eos", proposals)


class Replaying:
    """One device on a clock moved by hand: 0.1 s for a token, 0.4 s for the prompt."""

    def __init__(
        self, stop: FixedLength = FixedLength(4), dilation: float = 1.0, pace=speed(), ahead: bool = False
    ) -> None:
        self.loop = HandLoop()
        asyncio.set_event_loop(self.loop)
        self.truth = Truth(PROMPT)
        trace = sure_trace() if ahead else trace_of()
        self.drafts = ReplayDrafts({PROMPT: trace}, pace, stop, dilation, ahead)
        self.drafts.begin(self.truth, GREEDY)

    def draft(self, limit: int = 16) -> asyncio.Future[Drafted]:
        async def asked() -> asyncio.Future[Drafted]:
            return self.drafts.draft(self.truth, BlockBudget(limit))

        return self.loop.run_until_complete(asked())

    def seconds(self, future: asyncio.Future[Drafted]) -> float:
        """How long until it is done, to the hundredth."""
        hundredths = 0
        while not future.done():
            hundredths += 1
            assert hundredths < 1000
            self.loop.advance(0.01)
        return hundredths / 100

    def commit(self, *tokens: int) -> None:
        self.truth.extend(Verdict(len(self.truth), tokens))
        self.drafts.hear(self.truth)

    def sent(self) -> DraftBlock:
        """The next block, which then leaves; the device drafts ahead."""
        drafted = self.draft()
        self.seconds(drafted)
        block = drafted.result().block
        self.loop.call_soon(self.drafts.look_ahead, block, BlockBudget(16))
        self.loop.settle()
        return block


def sure_trace(wrong_at: int = 5) -> ItemTrace:
    """A drafter that is wrong at one place of the text, wherever it began to draft."""
    drafted = [*TEXT[:wrong_at], 99]
    proposals = tuple(
        Proposal(
            tuple([*drafted[place:], *([99] * 8)][:8] if place <= wrong_at else TEXT[place:]), (0.9,) * 8
        )
        for place in range(len(TEXT))
    )
    return ItemTrace("item", PROMPT, TEXT, "eos", proposals)


@pytest.fixture
def replaying():
    made = []

    def make(*arguments, **options) -> Replaying:
        made.append(Replaying(*arguments, **options))
        return made[-1]

    yield make
    for device in made:
        device.loop.close()
    asyncio.set_event_loop(None)


def test_the_first_token_comes_with_the_prompt_and_the_others_one_by_one(replaying):
    device = replaying()
    first = device.draft()
    assert device.seconds(first) == pytest.approx(0.4 + 3 * 0.1, abs=0.011)
    block, told, _ = first.result()
    assert block.base == 40 and block.ids == (50, 51, 99, 99)
    assert told == pytest.approx(0.4 + 3 * 0.1)
    device.commit(50, 51, 52)
    assert device.seconds(device.draft()) == pytest.approx(4 * 0.1, abs=0.011)
    assert device.drafts.drafted == 8


def test_time_is_dilated(replaying):
    device = replaying(dilation=5)
    assert device.seconds(device.draft()) == pytest.approx(5 * 0.7, abs=0.011)


def test_the_doubtful_token_that_ends_a_block_was_drafted_as_well(replaying):
    device = replaying(ConfidenceLength(4, confidence=0.7))
    block = device.draft()
    assert device.seconds(block) == pytest.approx(0.4 + 2 * 0.1, abs=0.011)
    assert (block.result().block.ids, device.drafts.drafted) == ((50, 51), 3)
    device.commit(50, 51, 52)
    assert device.draft().done() is False


def test_a_limit_shortens_the_block(replaying):
    device = replaying()
    block = device.draft(limit=1)
    assert device.seconds(block) == pytest.approx(0.4, abs=0.011) and block.result().block.ids == (50,)


def test_without_a_speed_a_block_is_there_at_once(replaying):
    assert replaying(pace=None).draft().done()


def test_an_interrupt_frees_the_device_after_the_token_under_way(replaying):
    device = replaying()
    block = device.draft()
    device.loop.advance(0.55)
    device.loop.call_soon(device.drafts.interrupt)
    device.loop.advance(0.0)
    assert not block.done() and device.drafts.drafted == 3
    device.truth = Truth(PROMPT)
    device.loop.call_soon(device.drafts.begin, device.truth, GREEDY)
    device.loop.settle()
    assert device.seconds(device.draft()) == pytest.approx(0.05 + 4 * 0.1, abs=0.021), "the prompt is known"
    assert len(block.result().block.tokens) == 3


def test_at_the_end_of_the_text_nothing_is_drafted(replaying):
    device = replaying()
    device.commit(*TEXT)
    assert device.draft().result() == Drafted(DraftBlock(48), 0.0)


def test_a_text_that_was_not_recorded_is_told_at_once(replaying):
    device = replaying()
    device.commit(50, 60)
    with pytest.raises(AssertionError, match="departs from the recording at token 1"):
        device.draft()
    with pytest.raises(AssertionError, match="nothing is recorded"):
        device.drafts.begin(Truth((1, 2)), GREEDY)


# -- drafting ahead ---------------------------------------------------------------------------------------------


def test_what_a_verdict_confirms_of_the_work_ahead_is_sent_at_once(replaying):
    device = replaying(FixedLength(2), ahead=True)
    assert device.sent().ids == (50, 51)
    device.loop.advance(0.35)  # 52, the guess of the bonus token, and 53 and 54 after it; no further
    device.commit(50, 51, 52)
    ready = device.draft()
    assert ready.done() and ready.result().block.ids == (53, 54)
    assert ready.result().seconds == pytest.approx(0.2), "they took their time, if ahead of it"
    assert (device.drafts.drafted, device.drafts.wasted) == (5, 0)


def test_a_verdict_ends_the_work_ahead_between_two_tokens(replaying):
    device = replaying(FixedLength(2), ahead=True)
    device.sent()
    device.loop.advance(0.12)  # the guess is drafted, and 53 under way
    device.commit(50, 51, 52)
    block = device.draft()
    assert device.seconds(block) == pytest.approx(0.08 + 0.1, abs=0.011)
    assert block.result().block.ids == (53, 54)


def test_a_lost_bet_costs_the_pass_under_way_and_is_counted(replaying):
    device = replaying(FixedLength(2), ahead=True)
    device.commit(50, 51, 52)
    assert device.sent().ids == (53, 54)
    device.loop.advance(0.15)  # the guess is wrong, and one more after it is under way
    device.commit(53, 54, 55)
    block = device.draft()
    assert device.seconds(block) == pytest.approx(0.05 + 0.2, abs=0.011)
    assert block.result().block.ids == (56, 57)
    assert device.drafts.wasted == 2


def test_a_block_that_the_truth_contradicts_ends_between_two_tokens(replaying):
    device = replaying(FixedLength(4), ahead=True)
    device.commit(50, 51, 52)
    block = device.draft()
    device.loop.advance(0.35)
    device.commit(53)
    device.loop.advance(0.1)
    device.commit(54, 55)
    assert device.seconds(block) == pytest.approx(0.43 + 0.1 - 0.45, abs=0.021), "0.43 s for prompt and news"
    assert block.result().block.ids == (53, 54), "by then the truth has got further"


def test_longer_blocks_than_were_recorded_go_on_at_the_place_they_reach():
    text = tuple(range(100, 120))
    proposals = [Proposal(text[place : place + 8], (0.9,) * 8) for place in range(12)]
    trace = ItemTrace(
        "long", PROMPT, text, "length", (*proposals, Proposal((112, 7, 7, 7, 7, 7, 7, 7), (0.4,) * 8))
    )
    assert [trace.proposed(4, index)[0] for index in range(10)] == [*range(104, 113), 7]
    assert trace.proposed(4, 40) == (7, 0.4), "after a wrong one all are alike"
    assert trace.proposed(13, 0) is None
    assert (trace.right(4, 99), trace.right(4, 3)) == (9, 3)


# -- real drafters ----------------------------------------------------------------------------------------------


async def blocks_of(drafts, trace: ItemTrace, item) -> list[DraftBlock]:
    """All blocks of one text; each verdict comes at once."""
    truth, blocks = Truth(trace.prompt_ids), []
    drafts.begin(truth, Sampler(item.params, noise_key(item.seed)))
    while truth.generated != trace.target_ids:
        place = len(truth) - truth.prompt_length
        blocks.append((await drafts.draft(truth, BlockBudget(max(0, item.max_tokens - place - 1)))).block)
        accepted = common_prefix(blocks[-1].ids, trace.target_ids[place:])
        truth.extend(Verdict(len(truth), trace.target_ids[place:][: accepted + 1]))
    drafts.interrupt()
    return blocks


@pytest.mark.parametrize("stop", [FixedLength(4), ConfidenceLength(8, confidence=0.5)])
async def test_a_replaying_device_drafts_what_the_real_one_drafts_in_the_same_time(stop, clock):
    """The blocks, and the passes that the same product code makes for them."""
    traces = read_traces(PACKAGED / "tiny-llamacpp.jsonl.gz").items
    items = {item.id: item for item in recorded_items()}
    live = PacedFactory(DRAFTERS.get("llamacpp")("tiny-draft", 1), speed()).create()
    with closing(DraftThread(live, stop)) as thread:
        replay = ReplayDrafts({trace.prompt_ids: trace for trace in traces}, None, stop)
        for trace in traces[:12]:
            item, started, counted = items[trace.item], clock.now, replay.drafted
            real = await blocks_of(thread, trace, item)
            recorded = await blocks_of(replay, trace, item)
            assert [block.ids for block in real] == [block.ids for block in recorded]
            passes = replay.drafted - counted
            assert clock.now - started == pytest.approx(0.1 * passes, abs=1.0), "prompts are up to 100 tokens"
    assert live.late_s == 0.0


def test_a_paced_pass_lasts_as_long_as_the_profile_says(clock):
    drafter = PacedFactory(DRAFTERS.get("llamacpp")("tiny-draft", 1), speed(), dilation=3).create()
    drafter.begin(range(100, 150), GREEDY)
    proposals = drafter.propose()
    for seconds in (0.5, 0.6, 0.7):
        next(proposals)
        assert clock.now - 100 == pytest.approx(3 * seconds)
    drafter.commit([7, 8])
    next(drafter.propose())
    assert clock.now - 100 == pytest.approx(3 * 0.8), (
        "what a verdict brought is computed with the first token"
    )
    drafter.close()
    with pytest.raises(EngineError):
        drafter.begin([1, 2, 3], GREEDY)
        next(drafter.propose())


def test_a_paced_drafter_works_ahead_at_its_pace(clock):
    drafter = PacedFactory(DRAFTERS.get("llamacpp")("tiny-draft", 1), speed()).create()
    drafter.begin(range(100, 150), GREEDY)
    block = [next(drafter.propose())]
    clock.now += 5.0  # the block is sent later
    started, steps = clock.now, drafter.look_ahead(block, 2)
    for tokens in (1, 2, 3):
        next(steps)
        assert clock.now - started == pytest.approx(0.1 * tokens)
    assert next(steps, "over") == "over" and drafter.ready == 4
    drafter.commit([block[0].id, drafter.drafted[1].id])
    assert drafter.ready == 2
    drafter.close()


def test_a_drafter_without_a_model_needs_no_pace():
    assert type(PacedFactory(NoneFactory(), speed()).create()) is type(NoneFactory().create())


class TestPacedDrafters(DrafterContract):
    """The contract of all drafters."""

    make = staticmethod(lambda: PacedFactory(DRAFTERS.get("llamacpp")("tiny-draft", 1), speed(1e9, 1e9)))
