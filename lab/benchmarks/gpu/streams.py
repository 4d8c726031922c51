"""The devices of one cell: real gRPC streams of the product's own edge loop, in one process of several."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from edge_client.lengths.hint import HintLength
from edge_client.link.link import Endpoint, Link
from hw_profiles import catalog
from lab.benchmarks.gpu.replay import DeviceReplay, Recording, prompt_of
from lab.testbed.emulation.replay import NoDrafts
from lab.testbed.load.hub_process import linked
from lab.testbed.load.load import Item
from lab.testbed.load.load_device import LoadDevice
from lab.testbed.load.records import Clock, RequestRecord
from opensled.core.errors import OpenSledError
from opensled.core.protocol import common_prefix

LONGEST = 8  # draft tokens of a device at most: more are not recorded at a place
TIMEOUT = 60.0  # seconds in which a server may answer its first call


class Cell(NamedTuple):
    """What one process plays, for as long as it takes."""

    address: str  # HOST:PORT of the server
    recordings: tuple[Recording, ...]  # one user each; a text of () was not recorded yet
    share: float  # of the draft tokens that are right
    device: str  # profile of the devices; "" = they do not draft
    link: str  # profile of their links; "" = loopback
    tokens: int  # of an answer
    vocabulary: int
    begin: float  # time.monotonic() of the measured window,
    end: float  # and of its end; no answer is asked for afterwards
    answers: int = 0  # of each user; 0 = as many as there is time for


class Heard(NamedTuple):
    """What one user read."""

    user: int
    texts: list[tuple[int, ...]]  # of finished answers
    arrivals: list[list[tuple[float, int]]]  # of each answer: time.monotonic() and tokens
    drafted: int  # tokens in blocks that were answered,
    accepted: int  # and those of them that stand
    rounds: int
    flips: int  # tokens that are not those of the recording
    first_s: list[float]  # to the first token of each answer
    errors: list[str]


class _Ids:
    """Stands for a tokenizer: texts are compared by their ids."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def play(cell: Cell) -> list[Heard]:
    """All users of the cell until its end; called in a process of its own."""
    return asyncio.run(_all(cell))


async def _all(cell: Cell) -> list[Heard]:
    clock = Clock()
    async with AsyncExitStack() as stack:
        devices = [await _device(cell, each, clock, stack) for each in cell.recordings]
        users = [_user(cell, each, device, clock) for each, device in zip(cell.recordings, devices)]
        return list(await asyncio.gather(*users))


async def _device(cell: Cell, recording: Recording, clock: Clock, stack: AsyncExitStack) -> LoadDevice:
    relay = await linked(cell.link, cell.address, 1.0, recording.user, stack)
    link = Link(Endpoint(relay.address if relay else cell.address, timeout=TIMEOUT, connect=TIMEOUT))
    stack.push_async_callback(link.close)
    device = LoadDevice(link.connect, _drafts(cell, recording), _Ids(), clock, traces={})  # type: ignore[arg-type]
    stack.push_async_callback(device.close)
    return device


def _drafts(cell: Cell, recording: Recording) -> NoDrafts | DeviceReplay:
    """As the product's own device drafts by default: as the server's hint says, and on while a verdict travels."""
    if not cell.device:
        return NoDrafts()
    trace = recording.trace(cell.share, cell.vocabulary)
    speed = catalog.device(cell.device).draft("0.5b")
    return DeviceReplay({trace.prompt_ids: trace}, speed, HintLength(LONGEST), looks_ahead=True)


async def _user(cell: Cell, recording: Recording, device: LoadDevice, clock: Clock) -> Heard:
    """One who asks again after each answer."""
    item = _item(cell, recording)
    records: list[RequestRecord] = []
    zero = time.monotonic() - clock.now()
    while time.monotonic() < cell.end and not (cell.answers and len(records) >= cell.answers):
        records.append(record := RequestRecord(recording.user, 0, item.id, clock.now(), sent=clock.now()))
        try:
            remaining = None if cell.answers else max(0.1, cell.end - time.monotonic())
            await asyncio.wait_for(device.ask(item, record), remaining)
        except TimeoutError:
            break
        except (OpenSledError, AssertionError) as error:
            record.error = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0.2)
    return _heard(recording, records, zero)


def _item(cell: Cell, recording: Recording) -> Item:
    """At T = 1, with noise that is the user's own."""
    prompt = prompt_of(recording.user, recording.context, cell.share, cell.vocabulary)
    return Item(
        f"user {recording.user}", prompt, cell.tokens, temperature=1.0, seed=recording.user, ignore_eos=True
    )


def _heard(recording: Recording, records: Sequence[RequestRecord], zero: float) -> Heard:
    texts = [_text(each) for each in records if each.finish_reason]
    rounds = [each for record in records for each in record.rounds]
    return Heard(
        user=recording.user,
        texts=texts,
        arrivals=[[(zero + each.time, each.tokens) for each in record.arrivals] for record in records],
        drafted=sum(each.drafted for each in rounds),
        accepted=sum(each.accepted for each in rounds),
        rounds=len(rounds),
        flips=sum(_flips(text, recording.text) for text in texts if recording.text),
        first_s=[each.arrivals[0].time - each.sent for each in records if each.arrivals],
        errors=[each.error for each in records if each.error],
    )


def _text(record: RequestRecord) -> tuple[int, ...]:
    return tuple(map(int, record.text.split()))


def _flips(text: Sequence[int], recorded: Sequence[int]) -> int:
    """Tokens of a text that are not those recorded at their places."""
    if common_prefix(text, recorded) == len(text):
        return 0
    return sum(one != other for one, other in zip(text, recorded))
