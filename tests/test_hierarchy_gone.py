"""A tier is gone, target, relay or device, at random moments: who waits, who goes on, and whose words they are."""

import asyncio
from dataclasses import replace

import pytest

from edge_client.link.remote import RemoteSession
from edge_client.offline.modes import LOCAL_ONLY, PROVISIONAL, STALL
from opensled.core.errors import ProtocolError, Unreachable
from opensled.core.messages import Draft, Guide, Open, Verdict
from tests.fakes import FakeEngine
from tests.outages import LostStream, Outages
from tests.serving import PROMPT
from tests.system import until
from tests.three_tiers import (
    EXPECTED,
    LENGTH,
    MIDDLE,
    QUICK,
    TASK,
    device,
    errs,
    ids_of,
    read,
    relaying,
    three,
    tiers,
)

BRIEF = replace(QUICK, give_up=0.05)


def origins_of(chunks):
    return [origin for chunk in chunks for origin in chunk.origins]


def alone_after(ids):
    """What the relay's model writes behind `ids` of the answer."""
    tokens = [*PROMPT, *ids]
    while len(tokens) < len(PROMPT) + LENGTH:
        tokens.append(MIDDLE(tokens))
    return tokens[len(PROMPT) :]


def outage(network, after, until_read=None):
    """For `read`: loses a server after so many tokens; finds it again once `until_read(chunk)`."""
    seen = [0]

    async def each(chunk):
        seen[0] += len(chunk.token_ids)
        if seen[0] >= after and not network.lost:
            await network.lose()
        elif network.down and until_read and until_read(chunk):
            network.find()

    return each


# -- the target is gone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [STALL, PROVISIONAL])
async def test_without_the_target_a_relay_vets_as_far_as_its_mode_allows_and_the_text_is_the_targets(mode):
    async with three(offline=mode, patience=QUICK) as (network, relay, upper), device(network) as made:
        reading = asyncio.ensure_future(read(made, each=outage(upper, 10)))
        await until(lambda: upper.down)
        [session] = relay.manager.remembered
        await until(lambda: session.sequence.waits)
        if mode == PROVISIONAL:
            await until(lambda: len(session.sequence.truth.vetted) > 20)
        else:
            await asyncio.sleep(0.05)
            assert len(session.sequence.truth.vetted) <= 15  # two blocks, and what a step brings
        upper.find()
        chunks = await reading
        assert ids_of(chunks) == EXPECTED


async def test_without_the_target_a_relay_writes_alone_for_a_device_that_takes_that():
    options = {"offline": LOCAL_ONLY, "patience": BRIEF}
    async with three(**options) as (network, relay, upper), device(network, takes_unverified=True) as made:
        chunks = await read(made, each=outage(upper, 10))
        ids, origins = ids_of(chunks), origins_of(chunks)
        verified = origins.index("relay")
        assert 10 <= verified < LENGTH and set(origins[verified:]) == {"relay"}
        assert ids[:verified] == EXPECTED[:verified] and ids == alone_after(ids[:verified]) != EXPECTED
        stats = chunks[-1].stats
        assert stats.local_tokens == LENGTH - verified == relay.survival.unverified
        assert stats.completion_tokens == LENGTH and made.telemetry.local == stats.local_tokens
        again = await read(made)  # a new answer, and still no target
        assert ids_of(again) == alone_after(()) and set(origins_of(again)) == {"relay"}
        upper.find()
        assert ids_of(await read(made)) == EXPECTED


@pytest.mark.parametrize(
    ("task", "mode", "takes_unverified"),
    [
        (TASK, LOCAL_ONLY, False),
        (TASK, STALL, True),
        (replace(TASK, top_logprobs=1), LOCAL_ONLY, True),
        (replace(TASK, guide=Guide(json_schema="{}")), LOCAL_ONLY, True),
    ],
    ids=["not taken", "not offered", "log-probabilities", "guided"],
)
async def test_what_needs_the_target_ends_by_an_error(task, mode, takes_unverified):
    async with three(offline=mode, patience=BRIEF) as (network, relay, upper):
        await upper.lose()
        session = RemoteSession(
            network.connect,
            Open(
                PROMPT,
                task.params,
                guide=task.guide,
                top_logprobs=task.top_logprobs,
                takes_unverified=takes_unverified,
            ),
            QUICK,
        )
        with pytest.raises(Unreachable):
            await session.open()
        assert not relay.manager.remembered


async def test_words_that_were_not_asked_for_end_the_answer():
    async with three() as (network, _, _):
        session = RemoteSession(network.connect, Open(PROMPT, TASK.params), QUICK)
        await session.open()
        with pytest.raises(ProtocolError, match="does not accept unverified text"):
            session._within_bounds(Verdict(3, (1, 2), unverified=1))
        await session.close()


async def test_a_relay_above_that_goes_on_alone_is_told_from_the_target():
    lowest = FakeEngine(num_blocks=200, target=errs(0.4, 1))
    async with (
        three(offline=LOCAL_ONLY, patience=BRIEF) as (between, _, upper),
        relaying(between, lowest, offline=LOCAL_ONLY, patience=QUICK) as (network, _),
        device(network, takes_unverified=True) as made,
    ):
        chunks = await read(made, each=outage(upper, 10))
        ids, origins = ids_of(chunks), origins_of(chunks)
        verified = origins.index("relay")
        assert set(origins[verified:]) == {"relay"} and ids == alone_after(ids[:verified])
        assert ids[:verified] == EXPECTED[:verified]


# -- what a reader sees -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [True, False])
async def test_vetted_tokens_are_shown_only_to_who_asks(shown):
    async with (
        three(offline=PROVISIONAL, patience=QUICK) as (network, _, upper),
        device(network, shows_vetted=shown) as made,
    ):
        each = outage(upper, 10, lambda chunk: chunk.provisional)
        reading = asyncio.ensure_future(read(made, each=each))
        if not shown:
            await until(lambda: upper.down)
            await asyncio.sleep(0.05)
            upper.find()
        chunks = await reading
        assert ids_of(chunks) == EXPECTED
        assert any(chunk.provisional for chunk in chunks) == shown


async def test_a_device_sends_one_draft_behind_an_end_that_is_not_confirmed():
    end = next(place for place in range(25, LENGTH) if EXPECTED[place] not in EXPECTED[:place])
    task = replace(TASK, params=replace(TASK.params, stop_ids=(EXPECTED[end],)))  # no device knows of it
    top, middle = FakeEngine(num_blocks=200), FakeEngine(num_blocks=200)
    options = {"network_type": Outages, "offline": PROVISIONAL, "patience": QUICK}
    async with tiers(top, middle, **options) as (network, relay, upper), device(network) as made:
        reading = asyncio.ensure_future(read(made, task, each=outage(upper, 5)))
        await until(lambda: upper.down)
        [session] = relay.manager.remembered
        await until(lambda: session.sequence.finish_reason)
        before = sum(isinstance(each, Draft) for each in network.uplinked)
        await asyncio.sleep(0.1)
        sent = sum(isinstance(each, Draft) for each in network.uplinked) - before
        upper.find()
        assert ids_of(await reading) == EXPECTED[: end + 1]
        assert sent <= 2, "one was on its way"


# -- the relay is gone --------------------------------------------------------------------------------------


class TwoWays:
    """A relay's network, and the target's beside it: what a device has with `--fallback`."""

    fallback = "target:1"

    def __init__(self, near, far):
        self.near, self.far, self.direct = near, far, 0

    def connect(self, address=""):
        self.direct += bool(address)
        return self.far.connect() if address else self.near.connect()


@pytest.mark.parametrize("after", [0, 10])
async def test_without_the_relay_a_device_goes_to_its_fallback(after):
    async with three(patience=QUICK) as (near, _, far):
        ways = TwoWays(near, far)
        async with device(ways) as made:
            if not after:
                await near.lose()
            chunks = await read(made, each=outage(near, after))
            assert ids_of(chunks) == EXPECTED and near.down and ways.direct == 1
            near.find()
            assert ids_of(await read(made)) == EXPECTED and ways.direct == 1


async def test_a_device_with_a_fallback_is_ready_without_its_relay():
    async with three(patience=QUICK) as (near, _, far):
        for network, ready in ((near, False), (TwoWays(near, far), True)):
            async with device(network) as made:
                made.watch.away = True
                assert (not made.unready) == ready


async def test_a_relay_that_cannot_reach_the_target_is_gone_round():
    async with three(patience=BRIEF) as (near, relay, far):
        cut = asyncio.Event()  # the relay's own way to the target; the device's is open
        whole = relay.upstream.connect
        relay.upstream = replace(
            relay.upstream, connect=lambda address="": LostStream() if cut.is_set() else whole()
        )
        ways = TwoWays(near, far)

        async def each(chunk):
            if chunk.token_ids and not cut.is_set():
                cut.set()
                await far.streams[0].close()

        async with device(ways) as made:
            assert ids_of(await read(made, each=each)) == EXPECTED and ways.direct == 1


@pytest.mark.parametrize("share", [0.2, 0.8])
async def test_no_more_drafts_are_told_as_accepted_than_there_are_tokens(share):
    top, middle = FakeEngine(num_blocks=200), FakeEngine(num_blocks=200, target=errs(share))
    async with tiers(top, middle, patience=QUICK) as (network, _, _), device(network) as made:
        chunks = await read(made)
        stats = chunks[-1].stats
        assert stats.accepted == origins_of(chunks).count("accepted") <= LENGTH
        assert stats.round_tokens + stats.server_decoded == stats.completion_tokens == LENGTH
