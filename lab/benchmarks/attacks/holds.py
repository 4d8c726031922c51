"""Attacks that take places, memory and threads, and keep them."""

import asyncio
from collections.abc import Callable

from edge_client.link.link import Endpoint, Link
from lab.benchmarks.attacks import messages
from lab.benchmarks.attacks.connection import Connection, Peer, Running
from lab.benchmarks.attacks.floods import Tally
from opensled.core.messages import Open, Opened, SamplingParams

# Seconds between two looks at what has ended: to hold much is the attack here, not to ask for it often.
REFILL_S = 0.1
CLOSED = 0  # a window: the server cannot send a byte of an answer
DIVISOR = 99_999_989


def unread(count: int, message: Callable[[], bytes], peer: Peer, running: Running, tally: Tally) -> None:
    """So many sequences of which not a byte is read, replaced as their streams end."""
    body = message()
    with Connection(peer, running, CLOSED) as connection:
        while running():
            for _ in range(min(50, connection.lacks(count))):
                stream = connection.call()
                connection.send(stream, body)
                tally["streams"] += 1
            tally["held"] = max(tally["held"], len(connection.open))
            connection.rest(REFILL_S)


def sequences(count: int, peer: Peer, running: Running, tally: Tally) -> None:
    """So many sequences without a draft, replaced as they end."""
    body = messages.opening()
    _keep(count, lambda: body, "sequences", peer, running, tally)


def asked(count: int, message: Callable[[], bytes], peer: Peer, running: Running, tally: Tally) -> None:
    """So many sequences with this message, which are read; a new one for each that ends."""
    body = message()
    _keep(count, lambda: body, "sequences", peer, running, tally)


def _keep(
    count: int, message: Callable[[], bytes], what: str, peer: Peer, running: Running, tally: Tally
) -> None:
    """So many streams that begin with such a message, replaced as they end."""
    with Connection(peer, running) as connection:
        while running():
            for _ in range(connection.lacks(count)):
                connection.send(connection.call(), message())
                tally[what] += 1
            connection.pump(0.05)


def silent(count: int, peer: Peer, running: Running, tally: Tally) -> None:
    """So many streams without a first message, replaced as they end."""
    with Connection(peer, running) as connection:
        while running():
            for _ in range(min(500, connection.lacks(count))):
                connection.call()
                tally["streams"] += 1
            tally["held"] = max(tally["held"], len(connection.open))
            connection.rest(REFILL_S)


def grammars(count: int, peer: Peer, running: Running, tally: Tally) -> None:
    """So many schemas that take for ever, each a little different; a new one for each that is refused."""
    _keep(
        count, lambda: messages.multiple_of(DIVISOR - 2 * tally["schemas"]), "schemas", peer, running, tally
    )


def pace(peer: Peer, running: Running, tally: Tally) -> None:
    """One sequence after another that asks for a million tokens a second."""
    with Connection(peer, running) as connection:
        while running():
            stream = connection.call()
            connection.send(stream, messages.opening(pace=1e6))
            tally["sequences"] += 1
            connection.wait_for_end(stream)


def resumed_texts(count: int, peer: Peer, running: Running, tally: Tally) -> None:
    """Texts to tokenize under the resume token of a session that lives: so many at a time."""
    body = messages.text(4_500, asyncio.run(_resume_token(peer)))
    _keep(count, lambda: body, "texts", peer, running, tally)


async def _resume_token(peer: Peer) -> bytes:
    """Of a session whose reader has gone, which the server remembers for a minute."""
    link = Link(Endpoint(peer.address, peer.token, peer.tls_ca is not None, peer.tls_ca))
    stream = link.connect()
    try:
        await stream.send(Open(messages.PROMPT, SamplingParams(temperature=0, max_tokens=messages.LONG)))
        opened = await stream.receive()
        return opened.resume_token if isinstance(opened, Opened) else b""
    finally:
        await stream.close()
        await link.close()
