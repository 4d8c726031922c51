"""A server that is lost and found again at random moments: what readers see meanwhile, and what they get."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RetryPolicy
from edge_client.offline import watching
from edge_client.offline.modes import LOCAL_GIVE_UP, PROVISIONAL, STALL, Offline, retry_policy
from edge_client.offline.provisional import SEGMENT, ProvisionalDrafting, ProvisionalTail
from edge_client.round.commits import Commit
from edge_client.round.draft_job import BlockBudget
from edge_client.round.drafting import DraftThread
from opensled.core.errors import Unreachable
from opensled.core.messages import Draft, DraftBlock, DraftToken, SamplingParams
from opensled.core.protocol import EndRules, Truth
from opensled.core.sampling import Sampler
from opensled.text.answer_text import AnswerText
from tests.devices import TOKENIZER
from tests.fakes import EOS, Made, OracleDrafter, Weather, continuation, next_token
from tests.loops import in_loop
from tests.outages import LIMITS, LONG, QUICK, Reader, Slow, device_that_loses
from tests.serving import PROMPT
from tests.tiny_drafts import Model

EXPECTED = continuation(PROMPT, LONG.params.max_tokens)
TEXT = TOKENIZER.decode(EXPECTED)


@in_loop
async def read_through(seed, mode=PROVISIONAL, chance=0.15, longest=12, **options):
    """One answer with outages: its text, its reader, and its network afterwards."""
    reader = Reader(seed, chance, longest)
    async with device_that_loses(mode, **options) as (device, network):
        return await reader.read(device, network), reader, network


# -- whole answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [25, pytest.param(100, marks=pytest.mark.long)])
def test_answers_with_random_outages_are_exactly_the_targets(answers):
    outages = guesses = right = 0
    for seed in range(answers):
        text, reader, network = read_through(seed)
        assert (text, reader.ids) == (TEXT, EXPECTED)
        assert all(TEXT.startswith(shown) for shown, _ in reader.screens), "what is confirmed never changes"
        assert all(after.startswith(before) for (before, _), (after, _) in pairwise(reader.screens))
        outages += network.lost
        guesses += sum(bool(guess) for _, guess in reader.screens)
        right += any(guess and TEXT.startswith(shown + guess[:4]) for shown, guess in reader.screens)
    assert outages > 1.5 * answers and guesses > 5 * answers and right > 0.5 * answers


@pytest.mark.parametrize("seed", range(8))
def test_messages_that_are_lost_as_well_change_nothing(seed):
    weather = Weather(loss=0.2, duplicate=0.2, reorder=0.2, seed=seed)
    patience = RetryPolicy(
        silence=0.03, first_retry=0.001, slowest_retry=0.004, first_open=60.0, give_up=60.0
    )
    text, reader, _ = read_through(seed, weather=weather, patience=patience)
    assert (text, reader.ids) == (TEXT, EXPECTED)


def test_an_answer_that_stalls_says_for_how_long_and_shows_no_guess():
    text, reader, network = read_through(3, STALL, chance=0.3)
    assert text == TEXT and network.lost > 2
    waiting = [chunk for chunk in reader.chunks if chunk.waiting]
    assert len(waiting) > 5 and all(chunk.token_ids == () and not chunk.text for chunk in waiting)
    assert not any(guess for _, guess in reader.screens)


def test_words_drafted_meanwhile_are_the_next_drafts_as_long_as_the_server_takes_them():
    text, reader, network = read_through(5, factory=Made(lambda: OracleDrafter(1.0)), longest=20)
    assert text == TEXT and network.lost
    lengths = {len(message.block.tokens) for message in network.uplinked if isinstance(message, Draft)}
    assert max(lengths) == LIMITS.max_draft, "longer than the 4 of its rule: they cost the device nothing"
    for (shown, guess), (later, _) in pairwise(reader.screens):
        assert TEXT.startswith(shown + guess), "a perfect guess loses its mark, and nothing else"
        assert later.startswith(shown)


@pytest.mark.parametrize("seed", range(4))
def test_a_draft_model_that_is_always_right_stays_so_through_outages(seed):
    """It looks ahead as well, and its cache must hold the truth again after each outage."""
    factory = SimpleNamespace(name="model", create=Model)
    text, reader, network = read_through(seed, factory=factory, chance=0.4, longest=10)
    assert text == TEXT and network.lost > 1
    assert all(TEXT.startswith(shown + guess) for shown, guess in reader.screens)
    stats = reader.chunks[-1].stats
    assert stats.rounds < 12 and stats.tokens_per_round > 5, "segments go out in one piece"


def test_a_guess_ends_at_the_bound_and_at_the_end_of_the_answer():
    _, reader, _ = read_through(7, factory=Made(lambda: OracleDrafter(1.0)), longest=40, most=10)
    assert 4 < max(len(TOKENIZER.encode(guess)) for _, guess in reader.screens) <= 12
    _, reader, _ = read_through(7, factory=Made(lambda: OracleDrafter(1.0)), longest=60)
    assert all(len(shown + guess) <= len(TEXT) for shown, guess in reader.screens)


# -- its parts -------------------------------------------------------------------------------------------


def going_on(drafter, ends=EndRules(frozenset({EOS}), frozenset(), 100), most=256):
    thread = DraftThread(drafter, FixedLength(4))
    return ProvisionalDrafting(thread, ends, most), thread


async def test_a_drafter_that_went_on_returns_to_the_truth_when_it_is_contradicted():
    drafter = OracleDrafter(1.0)
    ahead, thread = going_on(drafter)
    truth = Truth(PROMPT)
    ahead.begin(truth, Sampler(SamplingParams(), b"0" * 16))
    assert await ahead.go_on(truth) and await ahead.go_on(truth)
    assert [token.id for token in ahead.ahead(truth)] == continuation(PROMPT, 8)
    truth.tokens += continuation(PROMPT, 3)
    drafted = await ahead.draft(truth, BlockBudget(8))
    assert drafted.block.ids == tuple(continuation(PROMPT, 8)[3:]) and drafted.block.base == len(truth)
    assert (await ahead.draft(truth, BlockBudget(8, hint=2))).block.ids == drafted.block.ids[:2]
    truth.tokens.append(1 + next_token(truth.tokens) % 40)
    assert ahead.ahead(truth) == ()
    drafted = await ahead.draft(truth, BlockBudget(8))
    assert drafted.block.ids == tuple(continuation(truth.tokens, 4)), "by its rule again"
    assert drafter.truth == truth.tokens and ahead.wasted == 5
    thread.close()


async def test_a_drafter_looks_ahead_and_hears_of_the_truth_only_while_it_is_at_the_truth():
    ahead, thread = going_on(OracleDrafter(1.0))
    told = []
    thread.look_ahead = lambda block, room: told.append("ahead")
    thread.hear = lambda truth: told.append("heard")
    truth = Truth(PROMPT)
    ahead.begin(truth, Sampler(SamplingParams(), b"0" * 16))
    ahead.look_ahead(DraftBlock(3), BlockBudget(4))
    ahead.hear(truth)
    assert told == ["ahead", "heard"]
    await ahead.go_on(truth)
    ahead.look_ahead(DraftBlock(3), BlockBudget(4))
    ahead.hear(truth)
    assert told == ["ahead", "heard"]
    thread.close()


async def test_going_on_stops_where_nothing_can_follow():
    truth = Truth(PROMPT)
    fifth = continuation(PROMPT, 5)[-1]
    for ends, most, length in (
        (EndRules(frozenset({fifth}), frozenset(), 100), 256, 5),
        (EndRules(frozenset(), frozenset({fifth}), 100), 256, 5),
        (EndRules(frozenset(), frozenset(), len(PROMPT) + 6), 256, 6),
        (EndRules(frozenset(), frozenset(), 100), 8, 8),
    ):
        ahead, thread = going_on(OracleDrafter(1.0), ends, most)
        ahead.begin(truth, Sampler(SamplingParams(), b"0" * 16))
        while await ahead.go_on(truth):
            pass
        assert [token.id for token in ahead.ahead(truth)] == continuation(PROMPT, length)
        thread.close()


def test_a_tail_knows_what_the_target_said_of_it():
    tail = ProvisionalTail.after(Truth((1, 2), (3,)))
    assert tail.extend(DraftBlock(3, (DraftToken(4), DraftToken(5))), EndRules(frozenset(), frozenset(), 9))
    ids = {
        made: [token.id for token in tail.beyond(Truth((1, 2), made))] for made in ((3,), (3, 4), (3, 4, 5))
    }
    assert ids == {(3,): [4, 5], (3, 4): [5], (3, 4, 5): []}
    assert tail.beyond(Truth((1, 2), (3, 5))) == () == tail.beyond(Truth((1, 2), (3, 4, 5, 6)))


def test_a_guess_leaves_no_trace_in_the_text():
    ids = TOKENIZER.encode("Ümläut 漢字 and END, done")
    for known in range(len(ids)):
        text, plain = AnswerText(TOKENIZER, ("END",)), AnswerText(TOKENIZER, ("END",))
        before = text.commit(ids[:known])
        assert text.guess(ids[known:]) in "Ümläut 漢字 and ", "held characters and stop strings count"
        after = text.commit(ids[known:])
        assert (before[1] + after[1], bool(text.stopped_by)) == ("Ümläut 漢字 and ", True)
        assert (before, after) == (plain.commit(ids[:known]), plain.commit(ids[known:]))


async def test_a_segment_is_drafted_whatever_the_devices_own_rule_says():
    thread = DraftThread(OracleDrafter(1.0), ConfidenceLength(4, confidence=0.99))
    truth = Truth(PROMPT)
    thread.begin(truth, Sampler(SamplingParams(), b"0" * 16))
    assert (await thread.draft(truth, BlockBudget(4))).block.tokens == ()
    assert len((await thread.draft(truth, SEGMENT)).block.tokens) == SEGMENT.length
    thread.close()


def test_the_retries_are_the_modes_unless_configured():
    assert retry_policy(STALL, 0) == RetryPolicy() == retry_policy(PROVISIONAL, 0)
    assert retry_policy("local-only", 0).give_up == LOCAL_GIVE_UP
    assert retry_policy("local-only", 7).give_up == retry_policy(STALL, 7).give_up == 7


# -- silence, and readers who leave ------------------------------------------------------------------------


def test_a_server_that_is_silent_counts_as_away_though_its_stream_is_not_lost():
    engine = Slow(num_blocks=200)
    text, reader, network = read_through(1, chance=0.0, engine=engine, quiet=0.005)
    assert text == TEXT and not network.lost and len(network.streams) == 1
    assert any(guess for _, guess in reader.screens)


async def test_a_reader_who_leaves_while_the_server_is_away_frees_his_drafter():
    async with device_that_loses() as (device, network):
        answer = device.answer(LONG)
        async for chunk in answer:
            if chunk.waiting and chunk.provisional:
                break
            if chunk.token_ids and not network.down:
                await network.lose()
        await asyncio.wait_for(answer.aclose(), 20)
        assert device.drafters_busy == 0
        network.find()
        assert await Reader(0, chance=0.0).read(device, network) == TEXT


async def test_the_wait_ends_by_an_error_when_the_retries_do():
    brief = replace(QUICK, give_up=0.05)
    async with device_that_loses(patience=brief) as (device, network):
        with pytest.raises(Unreachable):
            async for chunk in device.answer(LONG):
                if chunk.token_ids and not network.down:
                    await network.lose()


async def test_a_watch_does_not_spin_while_nothing_happens(monkeypatch):
    async def never():
        await asyncio.sleep(0.2)
        yield Commit((1,), 0, 0)

    class Written:
        async def go_on(self, truth):
            return True

    session = SimpleNamespace(away=True, truth=None, prefill=None)
    looks = []

    async def arrived(*waited, wait=watching._wait_for_commit):
        looks.append(waited)
        return await wait(*waited)

    monkeypatch.setattr(watching, "_wait_for_commit", arrived)
    async for news in watching.watch_commits(never(), session, Offline(look=0.01), Written()):
        if isinstance(news, Commit):
            break
        session.away = False  # it is back, and says nothing yet
    assert len(looks) < 50
