"""The fleet of one target: devices of different kinds behind different links, from addresses of their own."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory
from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RetryPolicy
from edge_client.round.drafting import DraftThread
from hw_profiles import catalog
from lab.testbed.soak.account import Account
from lab.testbed.soak.edge_reader import EdgeReader
from lab.testbed.soak.liar import Liar
from lab.testbed.soak.questions import Course
from lab.testbed.soak.readers import Asking, Reader, SoakDevice
from lab.testbed.soak.roads import Roads
from lab.testbed.soak.server_reader import ServerReader
from lab.testbed.soak.target import SoakTarget, private_file
from opensled.core.messages import ModelInfo

PATIENT = RetryPolicy()
# An impatient device reopens its sequence while a paused server still has the stream before.
IMPATIENT = replace(PATIENT, silence=3.0, first_open=60.0)


@dataclass(frozen=True)
class DeviceKind:
    """How a device drafts, and on which link."""

    drafter: str
    lengths: DraftLengthPolicy
    link: str
    patience: RetryPolicy = PATIENT
    lies: bool = False  # about its confidences


DEVICES = (
    DeviceKind("none", FixedLength(0), "wifi-good"),
    DeviceKind("lookup", FixedLength(8), "lte", IMPATIENT),
    DeviceKind("cacheback", FixedLength(4, tree=12), "wifi-busy", IMPATIENT, lies=True),
    DeviceKind("llamacpp", ConfidenceLength(4), "ethernet"),
)
BYSTANDER = DeviceKind(
    "lookup", FixedLength(4), "wifi-good"
)  # goes past the relay, and must not suffer by its floods
EDGE_LINK = "wifi-good"


class Drafts:
    """Draft models of a target's devices, each loaded once."""

    def __init__(self, info: ModelInfo, target: SoakTarget) -> None:
        self._info, self._target = info, target
        self._factories: dict[str, DrafterFactory] = {}

    def _factory(self, name: str) -> DrafterFactory:
        """Loading takes a moment."""
        if name not in self._factories:
            self._factories[name] = DRAFTERS.get(name)(self._target.kind.draft, 1)
            self._factories[name].fit(self._info)
        return self._factories[name]

    def thread(self, kind: DeviceKind, seed: int) -> DraftThread:
        """A drafter in its thread. `seed`: of its lies."""
        drafter = self._factory(kind.drafter).create()
        images = self._info.images
        return DraftThread(
            Liar(drafter, seed) if kind.lies else drafter,
            kind.lengths,
            self._info.vocab_size,
            placeholder=images.token_id if images else None,
        )


async def fleet_of(
    target: SoakTarget,
    course: Course,
    account: Account,
    tokens: Sequence[str],
    number: int,
    seed: int,
    stack: AsyncExitStack,
    kinds: Sequence[DeviceKind] = DEVICES,
) -> list[Reader]:
    """All readers of target `number`, from 0, which have `tokens` in turns; the stack gives back what they hold."""
    drafts = Drafts(course.info, target)
    readers: list[Reader] = []
    devices = (*kinds, *((BYSTANDER,) if target.kind.relay else ()))
    for place, kind in enumerate(devices):
        home = target.origin if kind is BYSTANDER else target.address
        roads = _roads(home, kind.link, tokens[place % len(tokens)], number, place, seed)
        name = f"{target.name}-{place}"
        draws = seed + 100 * number + place
        thread = drafts.thread(kind, draws)
        asks = Asking(name, kind.drafter, kind.patience)
        device = SoakDevice(asks, roads, thread, course, account, draws)
        stack.push_async_callback(device.close)
        readers.append(device)
    if target.kind.edge:
        token = tokens[len(devices) % len(tokens)]
        roads = _roads(target.address, EDGE_LINK, token, number, len(devices), seed)
        readers.append(await _edge(target, roads, course, account, token, seed + 100 * number + len(devices)))
        stack.push_async_callback(readers[-1].close)
    if target.kind.http:
        place = len(readers)
        token = tokens[place % len(tokens)]
        roads = _roads(target.address, EDGE_LINK, token, number, place, seed)
        url, draws = f"http://{target.http}", seed + 100 * number + place
        readers.append(ServerReader(lambda: url, roads, course, account, draws, token))
        stack.push_async_callback(readers[-1].close)
    return readers


def _roads(home: str, link: str, token: str, number: int, place: int, seed: int) -> Roads:
    """To HOST:PORT `home`. Devices have addresses of their own, in Linux's loopback network."""
    source = f"127.1.{number}.{place + 1}"
    return Roads(home, catalog.link(link), token, source, 1000 * seed + 100 * number + 10 * place)


async def _edge(
    target: SoakTarget, roads: Roads, course: Course, account: Account, token: str, seed: int
) -> EdgeReader:
    """A real `opensled edge`, which reaches the target on its road."""
    road = await roads.to(target.address)
    file = private_file(target.place.folder / "edge.token", token)
    part = await asyncio.to_thread(target.add_edge, road.relay.address, file)
    return EdgeReader(lambda: f"http://{part.address}", roads, course, account, seed)
