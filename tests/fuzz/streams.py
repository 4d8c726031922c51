"""Streams by the decisions of a fuzzer: at a live server, at a device, and at a relay between both."""

from functools import cache

from opensled.core.messages import DraftBlock, DraftToken
from opensled.v1 import verify_pb2 as pb
from tests.fuzz import messages
from tests.fuzz.choices import Choices
from tests.fuzz.relay_room import RelayRoom
from tests.fuzz.rooms import Desk, Room

room, desk, relay_room = cache(Room), cache(Desk), cache(RelayRoom)
OPEN = messages.plain_open().SerializeToString()
RATIO = messages.plain_open(rule="ratio").SerializeToString()


def server_open(data: bytes) -> None:
    """An `Open` at a live manager, and a few steps of what becomes of it."""
    choose = Choices(data)
    with room().visit():
        wire = room().connect()
        room().say(wire, messages.open_(choose).SerializeToString())
        for _ in range(3):
            room().step()


def server_draft(data: bytes) -> None:
    """Drafts of a live sequence, with probabilities or without."""
    choose = Choices(data)
    with room().visit():
        wire = room().connect()
        room().say(wire, RATIO if choose.flag() else OPEN)
        counter = 0
        while not choose.over and counter < 8:
            counter += 1
            number = counter if choose.byte() < 230 else None
            base = 2 + counter if choose.byte() < 150 else None
            room().say(wire, messages.draft(choose, number, base).SerializeToString())
            if choose.flag():
                room().step()


def server_cancel(data: bytes) -> None:
    """`Cancel`, and everything else that can end a stream, in every state of it; other streams come and go beside."""
    choose = Choices(data)
    with room().visit():
        wires = [room().connect() for _ in range(2)]
        for _ in range(24):
            if choose.over:
                break
            _happen(choose, wires)


def _happen(choose: Choices, wires: list) -> None:
    at = choose.below(2)
    event = choose.byte() % 8
    if event == 0:
        room().say(wires[at], pb.ClientMessage(cancel=pb.Cancel()).SerializeToString())
    elif event == 1:
        room().say(wires[at], OPEN)
    elif event == 2:
        room().say(wires[at], messages.draft(choose, base=3 + choose.below(6)).SerializeToString())
    elif event == 3:
        wires[at].tear()
        wires[at] = room().connect()
    elif event == 4:
        room().loop.advance(choose.pick((1.0, 3.0, 25.0)))
    elif event == 5:
        room().say(wires[at], _resume(choose, room()))
    else:
        room().step()


def _resume(choose: Choices, where: Room) -> bytes:
    """An `Open` with the resume token of some session."""
    manager = where.server.manager
    session = choose.pick(manager.remembered) if manager.remembered else None
    if session is None:
        return OPEN
    opening = messages.plain_open()
    opening.open.resume_token = manager._signer.sign(session.id, "local")
    opening.open.committed.extend(session.sequence.tokens[3 : choose.below(20)])
    return opening.SerializeToString()


def server_stream(data: bytes) -> None:
    """A stream of anything: messages, damaged messages, bytes."""
    choose = Choices(data)
    with room().visit():
        wire = room().connect()
        for _ in range(12):
            if choose.over:
                break
            room().say(wire, messages.client_message(choose))
            if choose.flag():
                room().step()


def device_stream(data: bytes) -> None:
    """What a server may say to a device: verdicts in any order, failures, damaged messages."""
    choose = Choices(data)
    heard = [messages.server_message(Choices(b"\x0a"))] if choose.byte() < 200 else []
    while not choose.over and len(heard) < 16:
        heard.append(messages.server_message(choose))
    desk().hear(heard, DraftBlock(3, (DraftToken(4), DraftToken(5))))


def relay_stream(data: bytes) -> None:
    """What a server may say to a relay, while the devices of the relay draft, leave and come back."""
    choose = Choices(data)
    with relay_room().visit():
        wire = relay_room().connect()
        relay_room().say(wire, OPEN)
        relay_room().hear(messages.server_message(Choices(b"\x0a")))
        counter = 0
        while not choose.over and counter < 16:
            counter += 1
            event = choose.byte() % 8
            if event < 5:
                relay_room().hear(messages.server_message(choose))
            elif event == 5:
                number, base = counter, 3 + choose.below(6)
                relay_room().say(wire, messages.draft(choose, number, base).SerializeToString())
            elif event == 6:
                relay_room().loop.advance(choose.pick((0.1, 3.0, 6.0)))
            else:
                wire.tear()
                wire = relay_room().connect()
                relay_room().say(wire, _resume(choose, relay_room()))
            relay_room().step()
