"""A relay over fakes: the text is the top target's, whatever the relay's model says."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.link.remote import RemoteSession
from edge_client.round.draft_job import BlockBudget
from opensled.core.errors import NonFiniteLogits, ProtocolError, TruthConflict, Unsupported
from opensled.core.messages import Open, SamplingParams, Verdict
from opensled.core.protocol import EndRules, Truth
from opensled.wire import codec
from relay.survival import Survival
from relay.uplink import VettedBlocks
from relay.vetting import Vetting
from tests.fakes import EOS, POISON, FakeEngine, OracleDrafter, Weather, continuation
from tests.loops import in_loop
from tests.system import CALM, ask, until
from tests.table_target import CASES, LENGTH, PROMPT, TableDrafter, TableEngine, params_of, reference
from tests.three_tiers import IMPATIENT, errs, relaying, tiers
from verify_server.admission.session_manager import SessionLimits
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.sequence import Sequence

STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=5)
GREEDY = SamplingParams(temperature=0, max_tokens=40)
LONG = SamplingParams(temperature=0, max_tokens=120)


@pytest.mark.parametrize(
    ("share", "weather"),
    [(0.0, Weather()), (0.2, Weather()), (1.0, Weather()), (0.2, STORM)],
    ids=["agrees", "differs", "lies", "differs in a storm"],
)
async def test_the_text_is_the_top_targets(share, weather):
    middle = FakeEngine(target=errs(share))
    async with tiers(FakeEngine(), middle, weather=weather, above=weather) as (network, _, _):
        asked = [
            ask(network, [3, 1, 4, seed], OracleDrafter(0.7, seed), patience=IMPATIENT)
            for seed in range(1, 6)
        ]
        for seed, answer in enumerate(await asyncio.gather(*asked), 1):
            assert list(answer.tokens) == continuation([3, 1, 4, seed], 40)


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 0.05, 0.2, 0.5, 1.0])
async def test_twenty_thousand_tokens_in_storms(share):
    """Five of these are 100,000 tokens."""
    counted: list[int] = []
    for seed in range(1, 8):
        storm = replace(STORM, seed=seed)
        top, middle = FakeEngine(num_blocks=1000), FakeEngine(num_blocks=1000, target=errs(share, seed))
        async with tiers(top, middle, weather=storm, above=storm) as (network, _, _):
            prompts = [[3, 1, seed, each] for each in range(1, 25)]
            asked = [ask(network, each, OracleDrafter(0.7), LONG, patience=IMPATIENT) for each in prompts]
            for prompt, answer in zip(prompts, await asyncio.gather(*asked), strict=True):
                assert list(answer.tokens) == continuation(prompt, 120)
                counted.append(len(answer.tokens))
    assert sum(counted) == 7 * 24 * 120


@in_loop
async def answers_of(count=4, *, top=None, middle=None, params=GREEDY, acceptance=0.7, **options):
    """Answers of `count` devices, and the loops' statistics (relay, top)."""
    async with tiers(top or FakeEngine(), middle or FakeEngine(), **options) as (network, relay, upper):
        asked = [
            ask(network, [3, 1, 4, seed], OracleDrafter(acceptance, seed), params, patience=IMPATIENT)
            for seed in range(1, count + 1)
        ]
        return (
            await asyncio.gather(*asked),
            relay.manager.loop.machine.stats,
            upper.manager.loop.machine.stats,
        )


def test_a_relay_that_agrees_saves_the_target_its_steps():
    """The target waits until the relay has vetted a block: else it may have written all before that."""
    begun, middle = threading.Event(), FakeEngine()
    middle.before = lambda segments: len(middle.batches) >= 3 and begun.set()
    top = FakeEngine(before=lambda segments: begun.wait(60))
    answers, _, top = answers_of(1, top=top, middle=middle, params=LONG, block=8)
    assert len(answers[0].tokens) == 120
    assert top.steps < 120 / 3  # blocks of 8 and their bonus tokens, but for the first steps
    assert top.drafts.accepted > 0.5 * 120


def test_a_relay_that_is_always_wrong_costs_no_more_steps_than_decoding():
    answers, _, top = answers_of(1, middle=FakeEngine(target=errs(1.0)), block=8)
    assert list(answers[0].tokens) == continuation([3, 1, 4, 1], 40)
    assert top.drafts.accepted == 0 and top.steps <= 42


async def test_what_is_confirmed_and_taken_back_is_counted():
    # A target without cost would write all by itself: it waits for one of the relay's steps, 20 ms at most
    steps = threading.Semaphore(0)
    middle = FakeEngine(target=errs(0.3), before=lambda segments: steps.release())
    top = FakeEngine(before=lambda segments: steps.acquire(timeout=0.02))
    async with tiers(top, middle, block=3) as (network, relay, _):
        await ask(network, [3, 1, 4], OracleDrafter(0.7), LONG)
        found = {each.name: each.read() for each in relay.metrics}
    assert found["relay_confirmed_tokens_total"] > 5 < found["relay_taken_back_tokens_total"]


def test_a_device_hears_who_wrote_what():
    (answer,), _, _ = answers_of(1, acceptance=1.0, params=LONG)
    origins = [origin for commit in answer.commits for origin in commit.origins]
    assert len(origins) == 120 and set(origins) <= {"accepted", "bonus", "server"}
    assert origins.count("accepted") > 40


@pytest.mark.parametrize(
    ("share", "weather", "places"),
    [(0.0, Weather(), (0, 3, 8, 21)), (0.3, Weather(), (0, 3, 8, 21)), (0.3, STORM, (5, 21))],
    ids=["agrees", "differs", "differs in a storm"],
)
def test_stops_inside_vetted_tokens(share, weather, places):
    text = continuation([3, 1, 4, 1], 40)
    for place in places:
        params = SamplingParams(temperature=0, max_tokens=40, stop_ids=(text[place],))
        (answer,), _, _ = answers_of(
            1, middle=FakeEngine(target=errs(share)), params=params, weather=weather, above=weather
        )
        end = text.index(text[place]) + 1
        assert list(answer.tokens) == text[:end] and answer.finish_reason == "stop"


@pytest.mark.parametrize("length", [1, 2, 5, 17])
def test_every_length(length):
    answers, _, _ = answers_of(
        2, params=SamplingParams(temperature=0, max_tokens=length), middle=FakeEngine(target=errs(0.3))
    )
    for seed, answer in enumerate(answers, 1):
        assert list(answer.tokens) == continuation([3, 1, 4, seed], length)
        assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    "weather", [Weather(), pytest.param(STORM, marks=pytest.mark.long)], ids=["calm", "storm"]
)
async def test_penalties_count_what_was_taken_back_no_more(weather):
    top, middle = TableEngine(num_blocks=200), TableEngine(num_blocks=200)
    async with tiers(top, middle, weather=weather, above=weather, draft_wait=0.5) as (network, _, _):
        for case in CASES[:2]:
            drafter = TableDrafter(noise=0.5)
            answer = await ask(network, PROMPT, drafter, params_of(case), patience=IMPATIENT)
            assert answer.tokens == reference(PROMPT, LENGTH, **case)


async def test_relays_nest():
    lowest = FakeEngine(target=errs(0.4, 1))
    async with (
        tiers(FakeEngine(), FakeEngine(target=errs(0.2))) as (between, _, _),
        relaying(between, lowest, block=3) as (network, _),
    ):
        answer = await ask(network, [3, 1, 4], OracleDrafter(0.7), patience=IMPATIENT)
        assert list(answer.tokens) == continuation([3, 1, 4], 40)


async def test_rules_but_match_are_refused_by_name():
    async with tiers(FakeEngine(), FakeEngine()) as (_, relay, _):
        with pytest.raises(Unsupported, match="a relay does not serve rule 'ratio'") as caught:
            await relay.manager.open(Open((1, 2), rule="ratio"), "t")
        assert caught.value.field == "rule"


async def test_an_error_above_is_told_below_and_ends_no_other_sequence():
    async with tiers(FakeEngine(), FakeEngine()) as (network, _, _):
        good = asyncio.ensure_future(ask(network, [3, 1, 4], OracleDrafter(0.7), patience=IMPATIENT))
        with pytest.raises(NonFiniteLogits):
            await ask(network, [3, POISON], OracleDrafter(0.0), patience=IMPATIENT)
        assert list((await good).tokens) == continuation([3, 1, 4], 40)


async def test_a_reader_that_leaves_frees_both_tiers():
    async with tiers(FakeEngine(), FakeEngine(), limits=SessionLimits(linger=0.05)) as (
        network,
        relay,
        upper,
    ):
        session = RemoteSession(network.connect, Open((3, 1, 4), SamplingParams(0, max_tokens=150)), CALM)
        await session.open()
        await session.next_verdict()
        await session.close()
        await until(lambda: not relay.manager.remembered and not upper.manager.remembered)


async def test_a_finished_sequence_leaves_nothing_behind():
    limits = SessionLimits(linger=0.05)
    async with tiers(FakeEngine(), FakeEngine(), limits=limits) as (network, relay, _):
        await ask(network, [3, 1, 4], OracleDrafter(0.7), GREEDY)
        await until(lambda: not relay.manager.remembered)
        assert not relay.uplinks


def test_what_is_taken_back_is_found_by_the_reader():
    truth = Truth((1, 2))
    assert truth.extend(Verdict(2, (3, 4, 5), vetted=2)) == (3,)
    assert (truth.tokens, truth.generated, truth.rewinds) == ([1, 2, 3, 4, 5], (3,), 0)
    assert truth.extend(Verdict(3, (4, 7, 8), vetted=1)) == (4, 7)
    assert (truth.tokens, truth.generated) == ([1, 2, 3, 4, 7, 8], (3, 4, 7))
    assert (truth.rewinds, truth.kept) == (1, 4)
    assert truth.extend(Verdict(3, (4, 5), vetted=1)) == ()  # an older one, late
    assert truth.tokens == [1, 2, 3, 4, 7, 8]
    assert truth.extend(Verdict(6, (9,))) is None  # one between is missing
    truth.forget_vetted()
    assert truth.tokens == [1, 2, 3, 4, 7]
    with pytest.raises(TruthConflict):
        truth.extend(Verdict(4, (6, 8)))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12), st.randoms(use_true_random=False)
)
def test_verdicts_of_a_relay_in_any_order_end_in_the_same_truth(steps, lots):
    """What a relay says is a walk: vet some, confirm some, now and then otherwise."""
    final, tail, told = [1], [], []
    for confirms, vets in steps:
        base = len(final)
        for _ in range(confirms):
            token = lots.choice([tail[0] if tail else 5, 6])
            tail = tail[1:] if tail and tail[0] == token else []
            final.append(token)
        tail += [lots.randrange(5, 9) for _ in range(vets)]
        told.append(Verdict(base, (*final[base:], *tail), vetted=len(tail)))
    truth = Truth((1,))
    for verdict in told:
        truth.extend(verdict)
        for late in lots.sample(told[: told.index(verdict) + 1], k=min(2, told.index(verdict) + 1)):
            truth.extend(late)
    assert truth.tokens == [*final, *tail] and truth.confirmed == len(final)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3)), max_size=12), st.randoms()
)
def test_what_a_relay_tells_of_its_truth_is_what_its_reader_knows(steps, lots):
    """A relay vets, a target confirms, and a relay above it has vetted beyond that; each says the other's token now and
    then. Nothing confirmed ever changes, and behind it stands what was said last."""
    here, reader, written = Truth((1,)), Truth((1,)), [1]

    def after(ids, count):
        """What comes behind `ids`: the next of these or, seldom, another token."""
        return [each if lots.random() < 0.8 else 9 for each in (*ids, *[5] * count)][:count]

    def tell(base):
        said = here.tokens[base:]
        reader.extend(Verdict(base, tuple(said), vetted=len(here.vetted), revision=here.rewinds))
        assert reader.tokens == here.tokens and reader.confirmed == here.confirmed

    for vets, confirms, above in steps:
        here.decide(after((), vets), "", final=False)
        tell(here.confirmed)
        base, before = here.confirmed, here.vetted
        news = after(before, confirms + above)
        known = here.follow(news, confirms)
        written += news[:confirms]
        assert here.tokens[: here.confirmed] == written
        assert here.vetted[: len(news) - confirms] == tuple(news[confirms:])
        if known == len(news):
            assert here.vetted == before[confirms:], "what goes on from there stays"
        tell(base)
    here.follow((7,), 1, "stop")
    assert here.tokens == [*written, 7] and here.finish_reason == "stop" and not here.vetted


@pytest.mark.parametrize(
    "verdict", [Verdict(2, (3, 4), vetted=3), Verdict(2, (3,), finish_reason="eos", vetted=1)]
)
def test_a_verdict_that_cannot_be_is_refused(verdict):
    with pytest.raises(ProtocolError, match="vetted tokens must be the last"):
        codec.decode_server(codec.encode_server(verdict))


def test_the_chance_to_stand_is_learned_apart_by_what_the_device_said():
    survival = Survival()
    for _ in range(300):
        survival.add_verdict(True, True)
        survival.add_verdict(False, False)
    assert survival.chance(True) > 0.95 and survival.chance(False) < 0.05
    assert survival.of_all([True, False]) == pytest.approx(survival.chance(True) * survival.chance(False))


# -- when vetted tokens leave for the server above ----------------------------------------------------------------


ENDS = EndRules(frozenset(), frozenset(), 100)


def vetted(count, agreed=True, full=False, confirmed=3):
    """A sequence with so many vetted tokens behind three confirmed ones."""
    sequence = Sequence((1, 2, 3)[:confirmed], confirmed, ENDS, BlockTable(BlockPool(0, 1)))
    sequence.ahead = count if full else 100
    sequence.truth.decide(((1, 2, 3)[confirmed:] + tuple(range(10, 10 + count))), "", final=False)
    vetting = Vetting(SimpleNamespace(sequence=sequence, riders=()), Survival())
    vetting.agreed = [agreed] * len(sequence.truth.vetted)
    return vetting


@in_loop
async def block_of(vetting, *, length=8, bound=0.4, hint=None):
    """The ids of the block that leaves now; None = it is to grow."""
    blocks, budget = VettedBlocks(vetting, length, bound), BlockBudget(8, hint=hint)
    future = blocks.draft(Truth((1, 2, 3)), budget)
    return future.result().block.ids if future.done() else None


def test_a_block_leaves_when_it_is_full_doubtful_or_at_an_end():
    assert block_of(vetted(2)) is None
    assert block_of(vetted(8)) == tuple(range(10, 18)) == block_of(vetted(11))
    assert block_of(vetted(3), hint=2) == (10, 11)
    assert block_of(vetted(2, agreed=False)) == (10, 11)  # 0.55 ** 2 < 0.4
    assert block_of(vetted(1, agreed=False)) is None
    assert block_of(vetted(1, full=True)) == (10,)
    assert block_of(vetted(0, full=True)) is None
    assert block_of(vetted(8, confirmed=2)) is None, "it waits for what is not applied yet"
    assert block_of(vetted(20), length=12) == tuple(range(10, 18)), "the server above takes eight"


# -- where an answer ends -----------------------------------------------------------------------------------------


SHORT = [3, 1, 4]
TEXT = continuation(SHORT, 40)


def ending(place, **more):
    """A target with a further end."""
    return FakeEngine(facts={"eos_ids": (EOS, TEXT[place])}, **more)


@in_loop
async def answer(top, middle):
    async with asyncio.timeout(60), tiers(top, middle) as (network, _, _):
        return await ask(network, SHORT, OracleDrafter(0.7), GREEDY, patience=IMPATIENT)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("place", [0, 3, 8, 21])
def test_an_end_of_the_relays_model_alone_ends_nothing(place, share):
    found = answer(FakeEngine(), ending(place, target=errs(share)))
    assert list(found.tokens) == TEXT and found.finish_reason == "length"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("place", [0, 3, 8, 21])
def test_an_end_of_the_top_target_alone_ends_the_answer(place, share):
    found = answer(ending(place), FakeEngine(target=errs(share)))
    assert list(found.tokens) == TEXT[: TEXT.index(TEXT[place]) + 1] and found.finish_reason == "eos"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("top", "middle"), [(30, 200), (200, 30), (30, 30)])
def test_the_shorter_context_ends_it(top, middle, share):
    found = answer(FakeEngine(context_length=top), FakeEngine(context_length=middle, target=errs(share)))
    assert list(found.tokens) == TEXT[: 30 - len(SHORT)] and found.finish_reason == "length"
