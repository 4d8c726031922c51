"""Losslessness by equality under policy `goodput`, and whatever hints and drafts it could come upon.

The real engine in float64, real drafters beside liars, broken and silent devices, on links with delays of their own,
prompts that arrive in the middle, KV memory taken away every few steps. The text is the reference's, and of every draft
just that is accepted which the reference would have written.
"""

import asyncio
from collections.abc import Sequence
from math import inf

import pytest

from edge_client.drafters.lookup import LookupDrafter
from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession
from opensled.core.messages import MATCH
from opensled.core.noise import noise_key
from opensled.models.store import model_path
from scheduler import make_policy
from scheduler.plan import PolicyOptions, SchedulingPolicy
from tests.fakes import MemoryNetwork, Weather
from tests.lossless import IMPATIENT, STORM, Case, cases, check, factory
from tests.mischief import (
    HINTS,
    SLOW_STEPS,
    Account,
    Believes,
    Breaking,
    Liar,
    Silent,
    SlowNetwork,
    Whims,
    Witness,
)
from tests.system import CALM, Answer, ask, running, until
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.torch.torch_engine import load
from verify_server.rules.served import ServedRules

WAIT = 0.05  # seconds, for a device of which nothing is known
GOODPUT = make_policy("goodput", PolicyOptions(WAIT))
POLICIES: dict[str, SchedulingPolicy] = {
    "goodput": GOODPUT,
    "goodput, drafts": Believes(GOODPUT, SLOW_STEPS),
    "whims over goodput": Whims(GOODPUT, seed=2),
    "whims over fcfs": Whims(make_policy("fcfs", PolicyOptions(WAIT)), seed=3),
}
PATIENT = make_policy("fcfs", PolicyOptions(inf))
every_policy = pytest.mark.parametrize("name", POLICIES)
CALM_LINK = Weather()
BETWEEN = 3  # tokens that are committed between two questions
VOCAB = 2048  # of the tiny models
LENGTHS = (4, 8, 1, 16)
KINDS = ("llamacpp", "lookup", "onnx", "none", "liar", "breaking", "silent", "rude liar")


@pytest.fixture(scope="module")
def exact64():
    return load(str(model_path("tiny")), device="cpu", dtype="float64", kv_tokens=4096)


def drafter_of(kind: str, seed: int):
    if kind in ("llamacpp", "onnx"):
        return factory(kind).create()
    if kind == "silent":
        return factory("llamacpp").create()
    made = {"lookup": LookupDrafter, "none": NoneDrafter}
    if kind in made:
        return made[kind]()
    return {"liar": Liar, "breaking": Breaking, "rude liar": Liar}[kind](VOCAB, seed)


async def answer_all(
    engine,
    wanted: tuple[Case, ...],
    policy: SchedulingPolicy,
    *,
    rule: str = MATCH,
    weather: Weather = CALM_LINK,
    kinds: Sequence[str] = KINDS,
) -> tuple[list[Answer], Account]:
    """All cases, each on a device of another kind, asked in the midst of those before."""
    async with running(
        engine,
        policy=policy,
        max_step_tokens=96,
        weather=weather,
        limits=SessionLimits(linger=2.0, rules=ServedRules(trust_devices=True)),
        machine=witness_of(wanted),
        network_type=SlowNetwork,
    ) as network:
        loop = network.manager.loop

        async def one(number: int, case: Case) -> Answer:
            await until(
                lambda: loop.machine.stats.tokens >= number * BETWEEN or not loop.machine.sessions, seconds=60
            )
            return await ask_on_device(network, number, case, rule, kinds[number % len(kinds)])

        answers = await asyncio.gather(*[one(number, case) for number, case in enumerate(wanted)])
    return answers, loop.machine.account


async def ask_on_device(network: MemoryNetwork, number: int, case: Case, rule: str, kind: str) -> Answer:
    return await ask(
        network,
        case.prompt,
        drafter_of(kind, number),
        case.params,
        stop=FixedLength(LENGTHS[number % len(LENGTHS)]),
        patience=IMPATIENT if network.weather.loss else CALM,
        session_type=Silent if kind == "silent" else RemoteSession,
        rule=rule,
    )


def witness_of(wanted: tuple[Case, ...]) -> type[Witness]:
    scripts = {(case.prompt, noise_key(case.params.seed)): (*case.prompt, *case.expected) for case in wanted}
    return type("WitnessOfCases", (Witness,), {"scripts": scripts})


def greedy() -> tuple[Case, ...]:
    return 3 * tuple(case for case in cases() if case.params.temperature == 0)


# Also a liar who claims to be sure of every token changes nothing where the target is sure of one.
UNDER = {"in a calm": {}, "in a storm": {"weather": STORM}, "by rule ratio": {"rule": "ratio"}}


@every_policy
@pytest.mark.parametrize("under", UNDER)
def test_mixed_devices_with_evictions_and_prompts_in_the_middle(exact64, name, under):
    wanted = greedy() if under == "by rule ratio" else cases()
    answers, account = asyncio.run(answer_all(exact64, wanted, POLICIES[name], **UNDER[under]))
    check(wanted, answers)
    assert not account.wrong
    assert account.evictions > 4 or under != "in a calm"
    assert sum(answer.reopened for answer in answers) > 0 or under != "in a storm"


@pytest.mark.parametrize("rule", [MATCH, "ratio"])
def test_drafts_that_the_server_waits_for_are_accepted_in_part(exact64, rule):
    """However slow this machine is: else the tests above would show little of either rule."""
    kinds = ("llamacpp", "onnx", "lookup", "rude liar")
    answers, account = asyncio.run(answer_all(exact64, greedy(), PATIENT, rule=rule, kinds=kinds))
    check(greedy(), answers)
    assert not account.wrong and account.evictions and 0 < account.accepted < account.drafted


def test_whims_give_every_hint(exact64):
    _, account = asyncio.run(answer_all(exact64, cases(), POLICIES["whims over fcfs"]))
    assert account.hints == {*HINTS}


def test_goodput_has_devices_draft_where_steps_are_slow(exact64):
    """Else the tests above would show little of it."""
    _, account = asyncio.run(answer_all(exact64, cases(), POLICIES["goodput, drafts"]))
    assert account.accepted > 5 and max(hint or 0 for hint in account.hints) > 2
