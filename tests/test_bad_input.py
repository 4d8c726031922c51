"""Bad input at the gRPC manager: each gets its documented answer, the server lives, and nobody else notices."""

import re
from collections.abc import Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from opensled.core.errors import InvalidRequest
from opensled.core.messages import Failure, Opened
from opensled.v1 import verify_pb2 as pb
from tests.bad_input import (
    DEVICE,
    ENDS,
    GOES_ON,
    LINGERS,
    MAX_TOKENS,
    NEVER,
    PROMPT,
    ROWS,
    SENT,
    SILENT,
    VANISHING,
    Row,
    drafting,
    opening,
    text,
)
from tests.bystander import HELD, Bench, Place, two_servers
from tests.fakes import continuation
from tests.raw_wire import half_a_message, raw_stream
from tests.serving import linked, serving
from tests.system import until
from verify_server.access.client_limits import ClientLimits
from verify_server.round.session import Session

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/protocol.md"
LINGER = 0.05  # seconds
LONG = 300  # tokens of the sequences whose client vanishes: they are not finished before


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with two_servers(LINGER) as bench:
        yield bench


def test_the_tables_in_the_document_are_those_that_are_tested():
    section = DOCUMENT.read_text().split("## Bad input\n")[1].split("\n## ")[0]
    tables = re.findall(r"^### The sequence (.+)\n\n((?:\|.*\n)+)", section, re.M)
    assert {session: cells(table) for session, table in tables} == as_documented(ROWS)


def cells(table: str) -> list[tuple[str, ...]]:
    """Rows of a table below its head."""
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines()[2:]]


def as_documented(rows: Iterable[Row]) -> dict[str, list[tuple[str, ...]]]:
    """Tables by what becomes of the sequence: code, field, and everything that has this answer."""
    tables: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for row in rows:
        answer = tuple(f"`{name}`" if name else "" for name in (row.code, row.field))
        tables.setdefault(row.session, {}).setdefault(answer, []).append(row.sent)
    return {
        session: [(*answer, "; ".join(sent)) for answer, sent in table.items()]
        for session, table in tables.items()
    }


CASES = [(row, index) for row in SENT for index in range(len(row.cases))]


@pytest.mark.parametrize(("row", "index"), CASES, ids=[f"{row.sent} [{index}]" for row, index in CASES])
def test_bad_input_gets_its_documented_answer_and_touches_nobody(bench, row, index):
    frames = row.cases[index]
    committed = tuple(pb.ClientMessage.FromString(frames[0]).open.committed) if row.session == GOES_ON else ()

    async def scenario(place: Place) -> None:
        with remembering(place):
            async with raw_stream(place.address) as stream:
                await stream.send(*frames)
                outcome, tokens = await stream.outcome(committed)
            if row.session in (NEVER, ENDS):
                await until(lambda: not _victims(place))
            if row.session == LINGERS:
                await lingers(place, *_victims(place))
        if row.session == GOES_ON:
            held = [*PROMPT, *committed]
            assert tokens == held + continuation(held, MAX_TOKENS - len(committed)) and outcome == "length"
        else:
            _check_failure(row, outcome)
            assert bool(tokens) == (row.session != NEVER)

    bench.run(scenario, row.trusting)


def _check_failure(row: Row, outcome: Failure | str) -> None:
    if isinstance(outcome, str):
        assert outcome == row.code
        return
    assert (outcome.code, outcome.field) == (row.code, row.field), outcome
    assert row.reason in outcome.reason and len(outcome.reason) < 300


# -- clients that say nothing more ---------------------------------------------------------------------


async def test_a_client_that_is_silent_before_its_open_is_sent_away():
    row, limits = SILENT[0], ClientLimits(first_s=0.1)
    async with serving(client_limits=limits) as (manager, address), raw_stream(address) as stream:
        _check_failure(row, await stream.receive())
        assert await stream.receive() == "OK" and not manager.remembered


def test_a_half_close_before_open_ends_the_stream(bench):
    async def scenario(place: Place) -> None:
        async with raw_stream(place.address) as stream:
            await stream.half_close()
            assert await stream.outcome() == (SILENT[1].code, [])

    bench.run(scenario)


def test_a_half_close_after_open_is_answered_to_the_end(bench):
    async def scenario(place: Place) -> None:
        async with raw_stream(place.address) as stream:
            await stream.send(opening(), drafting(1))
            await stream.half_close()
            outcome, tokens = await stream.outcome()
            assert tokens == [*PROMPT, *continuation(PROMPT, MAX_TOKENS)] and outcome == "length"
            assert await stream.receive() == "OK"

    bench.run(scenario)


# -- clients that vanish --------------------------------------------------------------------------------


async def before_open(place: Place) -> None:
    async with raw_stream(place.address) as stream:
        await stream.send()
        stream.vanish()


async def while_its_prompt_is_tokenized(place: Place) -> None:
    with closed(place.text.gate):
        place.text.reading.clear()
        async with raw_stream(place.address) as stream:
            await stream.send(text("Hello"))
            await until(place.text.reading.is_set)
            stream.vanish()
            await until(lambda: not place.manager._admission._arriving)
        assert _victims(place) == []


async def after_opened(place: Place) -> None:
    async with opened(place) as (stream, session):
        stream.vanish()
        await lingers(place, session)


async def with_a_draft_waiting(place: Place) -> None:
    with closed(place.engine.gate):
        async with opened(place) as (stream, session):
            await until(lambda: session.in_step)
            await stream.send(drafting(1))
            await until(lambda: session.sources.device.offer)
            stream.vanish()
            await until(lambda: not session.has_reader)
            assert session.sources.device.offer is None
            place.engine.gate.set()
            await lingers(place, session)


async def during_a_step(place: Place) -> None:
    with closed(place.engine.gate):
        async with opened(place) as (stream, session):
            await until(lambda: session.in_step)
            stream.vanish()
            await until(lambda: not session.has_reader)
            assert session.in_step and session.sequence.memory.blocks
            place.engine.gate.set()
            await lingers(place, session)


async def after_the_last_verdict(place: Place) -> None:
    async with opened(place) as (stream, session):
        outcome, _ = await stream.outcome()
        assert outcome == "length"
        stream.vanish()
        await lingers(place, session)


async def in_the_middle_of_its_first_message(place: Place) -> None:
    async with half_a_message(place.address):
        assert _victims(place) == []


async def in_the_middle_of_a_later_message(place: Place) -> None:
    with remembering(place):
        async with half_a_message(place.address, opening(max_tokens=LONG)):
            await until(lambda: _victims(place))
            (session,) = _victims(place)
        await lingers(place, session)


SCRIPTS = {
    "before `Open`": before_open,
    "while its prompt is tokenized": while_its_prompt_is_tokenized,
    "after `Opened`": after_opened,
    "with a draft waiting": with_a_draft_waiting,
    "during a step": during_a_step,
    "after the last verdict": after_the_last_verdict,
    "in the middle of its first message": in_the_middle_of_its_first_message,
    "in the middle of a later message": in_the_middle_of_a_later_message,
}


@pytest.mark.parametrize("row", VANISHING, ids=[row.sent for row in VANISHING])
def test_a_client_that_vanishes_leaves_nothing_behind(bench, row):
    state = row.sent.removeprefix("a client gone ")
    bench.run(SCRIPTS[state])


@contextmanager
def closed(gate):
    gate.clear()
    try:
        yield
    finally:
        gate.set()


@contextmanager
def remembering(place: Place):
    """Sessions without a reader stay until the end, when they are forgotten by hand."""
    limits = place.manager.limits
    place.manager.limits = replace(limits, linger=60.0)
    try:
        yield
    finally:
        place.manager.limits = limits
        for session in place.manager.remembered:
            if not session.has_reader:
                place.manager.forget(session)


@asynccontextmanager
async def opened(place: Place):
    """An open sequence, as a raw stream and as the session it has become."""
    with remembering(place):
        async with raw_stream(place.address) as stream:
            await stream.send(opening(HELD, max_tokens=LONG))
            assert isinstance(await stream.receive(), Opened)
            (session,) = _victims(place)
            yield stream, session


def _victims(place: Place) -> list[Session]:
    return [one for one in place.manager.remembered if one.terms.params.max_tokens in (MAX_TOKENS, LONG)]


async def lingers(place: Place, session: Session) -> None:
    """It waits for its reader, and nothing is computed for it."""
    await until(lambda: not session.has_reader and not session.in_step)
    assert session in place.manager.remembered and session.id in place.manager._expiries


# -- what never leaves the device -----------------------------------------------------------------------


@pytest.mark.parametrize("row", DEVICE, ids=[row.sent for row in DEVICE])
def test_what_has_no_form_on_the_wire_is_refused_by_the_device(bench, row):
    async def scenario(place: Place) -> None:
        async with linked(place.address) as link:
            for message in row.messages:
                with pytest.raises(InvalidRequest, match=re.escape(row.reason)) as caught:
                    await link.connect().send(message)
                assert (caught.value.code, caught.value.field) == (row.code, row.field)

    bench.run(scenario)
