"""Attacks that send without an end: messages that are refused, streams that are refused, drafts that are late."""

from collections import Counter
from collections.abc import Callable

from lab.benchmarks.attacks import messages
from lab.benchmarks.attacks.connection import Connection, Peer, Running

Tally = Counter[str]
UNANSWERED = 1_000  # streams that a flood lets wait for their refusal
HELD = 16  # streams that a flood of served messages keeps


def refused(message: Callable[[], bytes], peer: Peer, running: Running, tally: Tally) -> None:
    """A stream with this message, and the next one when it has been answered."""
    body = message()
    with Connection(peer, running) as connection:
        while running():
            stream = _answered(connection, body, tally)
            if stream in connection.open:
                connection.reset(stream)


def held(message: Callable[[], bytes], peer: Peer, running: Running, tally: Tally) -> None:
    """Streams with this message, which is served; the last of them stay."""
    body = message()
    with Connection(peer, running) as connection:
        while running():
            stream = _answered(connection, body, tally)
            while len(connection.open) > HELD:
                connection.reset(next(iter(connection.open)))
            if stream not in connection.open:
                tally["refused"] += 1


def _answered(connection: Connection, body: bytes, tally: Tally) -> int:
    """A new stream on which this message has been answered."""
    stream = connection.call()
    connection.send(stream, body)  # a server may refuse it before its end
    tally["messages"] += 1
    connection.wait_for_answer(stream)
    return stream


def wrong_tokens(peer: Peer, running: Running, tally: Tally) -> None:
    """Streams with a token that is not in the server's file."""
    block = peer.block("a wrong token")
    with Connection(peer, running) as connection:
        while running():
            for _ in range(100):
                connection.call(block)
            tally["streams"] += 100
            connection.pump()
            connection.wait(lambda: len(connection.open) < UNANSWERED)


def rapid_resets(message: Callable[[], bytes], peer: Peer, running: Running, tally: Tally) -> None:
    """Streams that are reset at once, so that none of them counts as open (CVE-2023-44487); `message`: of each, before
    that; empty: none."""
    body = message()
    with Connection(peer, running) as connection:
        while running():
            for _ in range(100):
                stream = connection.call()
                if body:
                    connection.send(stream, body)
                connection.reset(stream)
            tally["streams"] += 100
            connection.pump()


def stale_drafts(streams: int, peer: Peer, running: Running, tally: Tally) -> None:
    """Drafts on the first base of sequences that are longer: answered each, verified never."""
    with Connection(peer, running) as connection:
        sequences: dict[int, int] = {}
        while running():
            while len(sequences) < streams and running():
                _begin(connection, sequences)
            for stream in list(sequences):
                sequences[stream] += 1
                if not connection.send(stream, messages.draft(sequences[stream], len(messages.PROMPT))):
                    del sequences[stream]
                    continue
                tally["drafts"] += 1
            connection.pump()


def _begin(connection: Connection, sequences: dict[int, int]) -> None:
    """A sequence that has begun to grow."""
    stream = connection.call()
    if connection.send(stream, messages.opening()):
        connection.wait_for_answer(stream)
        if stream in connection.open:
            sequences[stream] = 0


def failed(peer: Peer, running: Running, tally: Tally) -> None:
    """Sequences that fail by a draft on tokens that are not there, and streams that end before the Failure is read."""
    with Connection(peer, running) as connection:
        while running():
            stream = connection.call()
            connection.send(stream, messages.opening())
            connection.wait_for_answer(stream)
            if connection.send(stream, messages.draft(1, 1_000)):
                connection.pump()
                connection.reset(stream)
                tally["streams"] += 1
