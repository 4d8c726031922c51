"""`vllm serve --opensled`: users and devices in the same steps; each text is that of stock vLLM, or of engine torch.

Devices draft over real gRPC. Their reference is engine torch; of users it is the same server before any device came,
which is compared with stock vLLM once.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from tests.frames import drafting, opening
from tests.raw_wire import raw_stream
from tests.vllm.answers import QUESTIONS, VOCABULARY
from tests.vllm.known_devices import STYLES, Style, Written, answered, describe
from tests.vllm.servers import (
    RARE,
    SERVERS,
    VERIFIED,
    Setup,
    assert_alike,
    serving,
    some,
    wait_until,
)
from tests.vllm.testing_plugins import PARTS

ASKED = ("8, greedy", "8, T = 0.8", "16 of eight kinds")
FAULTS = [part for parts in PARTS.values() for part in parts]


@pytest.mark.parametrize(("server", "style", "asked"), some(SERVERS, STYLES, ASKED), indirect=["server"])
def test_devices_and_users_share_steps_and_each_text_is_the_targets_own(server, known, style, asked):
    written, users = server.write(known[asked], STYLES[style])
    for found, answer in zip(written, known[asked], strict=True):
        found.assert_same(answer)
    assert_alike(users, server.alone)
    drafted, accepted = (
        sum(getattr(each.stats, name) for each in written) for name in ("drafted", "accepted")
    )
    print(style, "drafted, accepted:", drafted, accepted)
    if SERVERS[server.name].settings == VERIFIED:
        assert bool(drafted) == (style != "none")
        assert bool(accepted) == (style not in ("none", "wrong"))
    wait_until(lambda: not server.running(), server.process)


@pytest.fixture
def mended(server):
    """The server verifies drafts again."""
    yield
    server.fault.write_text("none")
    server.ask("one token", "Hello")
    server.fault.unlink()


@pytest.mark.parametrize(("server", "part", "asked"), some(SERVERS, FAULTS, ASKED), indirect=["server"])
def test_a_fault_of_ours_costs_drafts_and_no_text(server, mended, known, part, asked):
    server.fault.write_text(part)
    written, users = server.write(known[asked], STYLES["right"])
    assert not server.fault.exists(), "the part ran"
    for found, answer in zip(written, known[asked], strict=True):
        found.assert_same(answer)
    assert_alike(users, server.alone)


ONE_EACH = [pytest.param(name, marks=[pytest.mark.long] * (name in RARE)) for name in SERVERS]


@pytest.mark.parametrize("server", ONE_EACH, indirect=True)
def test_a_session_cannot_be_guessed(server):
    """Neither as a name nor as terms: it is an ordinary request."""
    for guess in ("guessed name", "guessed terms"):
        assert server.ask(guess, QUESTIONS[0]) == server.ask("seed", QUESTIONS[0])


@pytest.mark.parametrize("server", ONE_EACH, indirect=True)
def test_ids_outside_the_vocabulary_are_refused_at_the_door(server, known):
    async def outcome(*ids: int):
        async with raw_stream(server.devices) as stream:
            await stream.send(opening(), drafting(*ids))
            return (await stream.outcome())[0]

    for ids in ((VOCABULARY,), (5, 1 << 30), (2**32 - 1,)):
        assert "vocabulary" in asyncio.run(outcome(*ids)).reason
    written, users = server.write(known["8, greedy"], STYLES["right"])
    for found, answer in zip(written, known["8, greedy"], strict=True):
        found.assert_same(answer)
    assert_alike(users, server.alone)


@pytest.mark.parametrize("server", ["two processes, two fronts"], indirect=True)
def test_texts_are_those_of_stock_vllm(server, tmp_path):
    with serving(tmp_path, "stock", Setup(devices=False)) as stock:
        assert_alike(server.alone, stock.ask_all())


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.long)])
def test_devices_go_on_where_a_killed_server_left_them(tmp_path, known, whole):
    """It dies once the first of 16 answers is whole; half of them need several times as many steps. `whole`: with all
    of its processes; else only vLLM's engine dies, and the server ends by itself."""
    setup, answers = SERVERS["asynchronous"], known["16 of eight kinds"]
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path / "first", "asynchronous", setup))

        async def write() -> list[Written]:
            info = await describe(server.endpoint)
            styles = [STYLES["right"], Style(right=0.0, late={0.1: 1.0})]
            each = [
                asyncio.create_task(answered(server.endpoint, info, answer, styles[number % 2], number))
                for number, answer in enumerate(answers)
            ]
            await asyncio.wait(each, return_when=asyncio.FIRST_COMPLETED)
            assert not all(task.done() for task in each)
            server.kill(whole)
            again = serving(tmp_path / "again", "asynchronous", setup, (server.devices, server.users))
            await asyncio.to_thread(stack.enter_context, again)
            return await asyncio.gather(*each)

        for found, answer in zip(asyncio.run(write()), answers, strict=True):
            found.assert_same(answer)
