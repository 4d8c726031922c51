"""What a server's drafter may cost and show: garbage costs drafts only, tenants see nothing of each other, and memory
has a bound whatever is asked.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edge_client.drafters.none import NoneDrafter
from opensled.core.messages import DraftBlock, DraftToken, SamplingParams
from opensled.core.protocol import common_prefix
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from tests.drafters_beside import Returns
from tests.fakes import FakeEngine, FakeText, continuation
from tests.loops import cancelled, in_loop
from tests.system import ask, running
from verify_server.drafting import cacheback
from verify_server.drafting.cacheback import ServerTables
from verify_server.drafting.lookup import ServerLookup
from verify_server.drafting.model import ServerModel
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.loaded_model import ServedModel

PROMPTS = [[id, 2, 3] for id in range(1, 5)]
EXPECTED = [tuple(continuation(prompt, 40)) for prompt in PROMPTS]
FOUR = Fcfs(float("inf"), 4)
SHORT = SamplingParams(temperature=0, max_tokens=4)


class Forgetful(Returns):
    """Fails at everything but a draft."""

    def forget(self, session: int) -> None:
        raise RuntimeError("forget")


def each(token: object = DraftToken(1), **fields: object) -> Callable[[Sequence[Ask]], list[Proposal]]:
    """A draft of this token for everybody."""
    return lambda asks: [Proposal(DraftBlock(ask.length, (token,)), **fields) for ask in asks]  # type: ignore[arg-type]


def right(asks: Sequence[Ask]) -> list[Proposal]:
    """What the target will write, as ids of numpy."""
    return [ask.chain((np.int64(id), 0.9) for id in continuation(ask.tokens, ask.most)) for ask in asks]


GARBAGE = {
    "no confidence": each(DraftToken(1, float("nan"))),
    "confidence below 0": each(DraftToken(1, -5.0)),
    "confidence above 1": each(DraftToken(1, float("inf"))),
    "no number": each(DraftToken(1, None)),
    "half an id": each(DraftToken(1.5)),
    "a word for an id": each(DraftToken("1")),
    "no token": each(None),
    "nothing": lambda asks: None,
    "nothing for each": lambda asks: [None for _ in asks],
    "no block": lambda asks: [Proposal(None) for _ in asks],
    "too few": lambda asks: [],
    "too many": lambda asks: 3 * each()(asks),
    "an error that comes late": lambda asks: (1 / 0 for _ in asks),
    "has read less than nothing": each(read=-(10**9), unread=10**9),
    "has read NaN": each(read=float("nan"), unread=float("nan")),
}


async def served(drafter: ServerDrafter, policy=FOUR) -> tuple[list[tuple[int, ...]], int]:
    """The answers to all PROMPTS and one more, as long as the server's loop lives; server's drafts that stood."""
    async with running(FakeEngine(num_blocks=400), drafter=drafter, policy=policy) as network:
        asking = [ask(network, prompt, NoneDrafter()) for prompt in PROMPTS]
        answers = await asyncio.wait_for(asyncio.gather(*asking), 20)
        late = await asyncio.wait_for(ask(network, PROMPTS[0], NoneDrafter()), 20)
        return [answer.tokens for answer in (*answers, late)], network.manager.loop.machine.stats.own.accepted


@pytest.mark.parametrize("policy", [FOUR, Goodput(0.05)], ids=["fcfs", "goodput"])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_of_a_drafter_costs_drafts_and_no_answer(name, policy):
    texts, _ = asyncio.run(served(Returns(GARBAGE[name]), policy))
    assert texts == [*EXPECTED, EXPECTED[0]]


def test_a_drafter_that_cannot_forget_costs_no_answer(caplog):
    texts, _ = asyncio.run(served(Forgetful(each())))
    assert texts == [*EXPECTED, EXPECTED[0]]
    assert "a sequence was over" in "\n".join(caplog.messages)


def test_ids_of_numpy_are_ids():
    texts, accepted = asyncio.run(served(Returns(right)))
    assert texts == [*EXPECTED, EXPECTED[0]] and accepted > 100


# -- tenants ----------------------------------------------------------------------------------------------------


@in_loop
async def of_tenants(
    drafter: ServerDrafter, tenants: str, look: Callable[[], int], target: FakeEngine | None = None, **options
) -> list[int]:
    """One tenant after the other asks the same; by how much `look` grew with each."""
    found = []
    async with running(target or engine(), drafter=drafter, policy=FOUR, **options) as network:
        for tenant in tenants:
            network.tenant, before = tenant, look()
            await ask(network, LONG, NoneDrafter())
            for session in network.manager.remembered:
                network.manager.forget(session)
            found.append(look() - before)
    return found


def engine(**options) -> FakeEngine:
    return FakeEngine(num_blocks=100, **options)


def tables() -> ServerTables:
    return ServerTables(None, ServedModel("fake", engine(), FakeText()))


LONG = list(range(1, 41))
UNSHARED = {"prefix_cache": False}


class Tally(ServerDrafter):
    """Counts the right draft tokens of another drafter."""

    def __init__(self, drafter: ServerDrafter) -> None:
        self._drafter, self.right = drafter, 0

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        found = self._drafter.propose(asks)
        for each, made in zip(asks, found):
            truth = [each.tokens[-1]]
            for _ in range(each.most):
                truth.append(unrepeated(truth))
            self.right += common_prefix(made.block.ids, truth[1:])
        return found


def unrepeated(context: Sequence[int]) -> int:
    """A target whose answer holds no token twice: only who read it before knows how it goes on."""
    return 1 + (context[-1] + 16) % 47


def test_a_tenants_tables_draft_for_no_other_tenant():
    """One tenant's answer is planted; only the same tenant is drafted it."""
    counted = Tally(tables())
    first, other, again = of_tenants(counted, "aba", lambda: counted.right, engine(target=unrepeated))
    assert (first, other) == (0, 0) and again >= 8


@pytest.mark.parametrize("memory", [{}, UNSHARED], ids=["prefix cache", "no prefix cache"])
def test_a_draft_model_reads_for_each_tenant_anew(memory):
    """KV blocks change hands with what the draft model wrote in them, which must save no other tenant any time."""
    model = engine()
    first, other = of_tenants(ServerModel(model), "ab", lambda: model.computed, **memory)
    assert other == first


def test_without_a_prefix_cache_a_draft_model_reads_for_each_session_anew():
    model = engine()
    drafter = ServerModel(model, shared=False)
    first, other = of_tenants(drafter, "aa", lambda: model.computed, **UNSHARED)
    assert other == first


# -- memory -----------------------------------------------------------------------------------------------------


def an_ask(session: int, tenant: str, tokens: Sequence[int]) -> Ask:
    return Ask(session, tenant, [*tokens, 1], 4, SHORT, bytes(16))


def test_tables_of_many_tenants_have_a_bound(monkeypatch):
    """Those of the tenant that drafted longest ago go first; its sessions begin anew, and hold nothing of the old."""
    monkeypatch.setattr(cacheback, "MAX_LEADERS", 100)
    drafter = tables()
    for number in range(20):
        drafter.propose([an_ask(number, f"tenant {number}", range(2, 40))])
        held = {id(text.followers._dynamic): text.followers._dynamic for text in drafter._texts.values()}
        assert sum(map(len, held.values())) <= 100 + 38
    assert "tenant 0" not in drafter._tenants and "tenant 19" in drafter._tenants
    drafter.propose([an_ask(0, "tenant 0", range(2, 40))])
    assert drafter._texts[0].followers._dynamic is drafter._tenants["tenant 0"].table


def test_many_tenants_have_a_bound(monkeypatch):
    monkeypatch.setattr(cacheback, "MAX_TENANTS", 3)
    drafter = tables()
    for number in range(20):
        drafter.propose([an_ask(number, f"tenant {number}", [2, 3])])
    assert len(drafter._tenants) <= 4 and len(drafter._texts) <= 4


@pytest.mark.parametrize("make", [ServerLookup, tables, lambda: ServerModel(engine())])
async def test_what_sessions_leave_is_forgotten(make):
    """Also of readers that left while a step was under way."""
    drafter = make()
    async with running(engine(), drafter=drafter, policy=FOUR) as network:
        asking = [asyncio.ensure_future(ask(network, prompt, NoneDrafter())) for prompt in PROMPTS * 4]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        await cancelled(*asking)
        for session in network.manager.remembered:
            network.manager.forget(session)
        await ask(network, PROMPTS[0], NoneDrafter(), SHORT)
    kept = drafter.guests.guests if isinstance(drafter, ServerModel) else drafter.__dict__.get("_texts")
    assert len(drafter._indices if kept is None else kept) <= 1


async def test_a_draft_longer_than_the_memory_holds_up_nobody():
    """`server-draft` has no upper bound; the room for a draft has."""
    pool = FakeEngine(num_blocks=16, target=lambda context: 1 + len(context) % 7)
    async with running(pool, drafter=ServerLookup(), policy=Fcfs(float("inf"), 10**9)) as network:
        asking = [ask(network, prompt, NoneDrafter()) for prompt in PROMPTS]
        answers = await asyncio.wait_for(asyncio.gather(*asking), 20)
        assert {len(answer.tokens) for answer in answers} == {40}
