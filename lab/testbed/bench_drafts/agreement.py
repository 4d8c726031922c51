"""How often a draft says what the target wrote, by place: counted by text, so that both may have any vocabulary."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import median
from typing import Any, NamedTuple

from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.detection import find_server
from edge_client.draft_servers.http_stream import stream
from edge_client.draft_servers.server import dialect_of
from edge_client.drafters.by_text import Piece
from edge_client.drafters.llamacpp import LlamaCppFactory
from edge_client.drafters.model_text import ModelText
from edge_client.drafters.outage import LOAD_S
from lab.benchmarks.program import say
from lab.benchmarks.real_texts import KINDS, prompts
from lab.testbed.bench_drafts.target import NO_DRAFTS, Target
from opensled.core.errors import DraftSourceError

PLACES = 8  # of a draft; so far the law goes
CHARACTERS = 700  # of a text that a prompt quotes


class DraftText(NamedTuple):
    """What drafts: the pieces that follow a text."""

    name: str
    after: Callable[[str], Generator[Piece, None, None]]


class Recorded(NamedTuple):
    """A text of the target's own."""

    kind: str
    prompt: str
    pieces: list[str]


def questions(each: int) -> list[tuple[str, str]]:
    """Kinds and their questions, the kinds in turns."""
    asked = [[(kind, prompt.text) for prompt in prompts(kind, CHARACTERS)[:each]] for kind in KINDS]
    return [pair for several in zip(*asked) for pair in several]


def served_draft(url: str, model: str, key_file: str) -> DraftText:
    """The draft of a server. Raises UsageError, NotFound, Unauthorized and DraftSourceError."""
    address = draft_address(url, key_file)
    with _named(address.place):
        found = find_server(address, model)
    dialect = dialect_of(found)

    def after(text: str) -> Generator[Piece, None, None]:
        said = stream(found.address, dialect.path, dialect.request(text), dialect.read, LOAD_S)
        with _named(address.place), closing(said):
            yield from (piece for piece in said if piece is not None)

    return DraftText(f"{found.model} at {address.place}", after)


@contextmanager
def _named(place: str) -> Iterator[None]:
    try:
        yield
    except DraftSourceError as error:
        raise DraftSourceError(f"the draft server {place}: {error}; is it running?") from error


def local_draft(model: str) -> DraftText:
    """A draft model of this machine. Raises NotFound."""
    factory = LlamaCppFactory(model)
    source = ModelText(factory.create_model(), factory.tokenizer())

    def after(text: str) -> Generator[Piece, None, None]:
        source.follow(text.encode())
        yield from source.pieces()

    return DraftText(factory.name, after)


async def record(target: Target, each: int, tokens: int) -> list[Recorded]:
    """The target's greedy texts, which end where it ends them."""
    found = []
    for kind, question in questions(each):
        say(f"a text to draft: {kind} ...")
        framed = await target.framed(question)
        asked = question if target.api == "chat" else framed
        text = await target.ask(asked, tokens, ignore_eos=False, **NO_DRAFTS)
        found.append(Recorded(kind, framed, text.pieces))
    return found


def agreement(
    texts: Sequence[Recorded], draft: DraftText, every: int, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The draft goes on from every `every`-th place of each text."""
    kinds = {text.kind: ([0] * PLACES, [0] * PLACES) for text in texts}
    paces = list[float]()
    for text in texts:
        say(f"drafting a text: {text.kind} ...")
        for place in range(0, len(text.pieces), every):
            wanted = [piece.encode() for piece in text.pieces[place : place + PLACES]]
            before = text.prompt + "".join(text.pieces[:place])
            said, is_end, pace = _heard(draft.after(before), sum(map(len, wanted)), clock)
            paces += pace
            _count(wanted, said, is_end, *kinds[text.kind])
    total = [[sum(column) for column in zip(*lists)] for lists in zip(*kinds.values())]
    return {
        "draft": draft.name,
        "ms": round(1000 * median(paces), 3) if paces else None,
        "kinds": {kind: {"reached": reached, "stood": stood} for kind, (reached, stood) in kinds.items()},
        "by_place": chances(*total),
    }


def _heard(
    pieces: Generator[Piece, None, None], enough: int, clock: Callable[[], float]
) -> tuple[bytes, bool, list[float]]:
    """What it said, whether it ended its answer there, and the seconds between its tokens."""
    said, times, is_end = b"", list[float](), False
    with closing(pieces):
        for piece in pieces:
            said, is_end = said + piece.text, piece.is_end
            times.append(clock())
            if len(said) >= enough or is_end:
                break
    return said, is_end, [(times[-1] - times[0]) / (len(times) - 1)] if len(times) > 1 else []


def _count(wanted: Sequence[bytes], said: bytes, is_end: bool, reached: list[int], stood: list[int]) -> None:
    """Count the places up to the first that does not stand, or of which nothing was said."""
    needed = b""
    for place, piece in enumerate(wanted):
        needed += piece
        if needed.startswith(said) and len(said) < len(needed) and not is_end:
            return
        reached[place] += 1
        if not said.startswith(needed):
            return
        stood[place] += 1


def chances(reached: Sequence[int], stood: Sequence[int]) -> list[float]:
    """Of each place, after those before it stood; as far as there is anything to count."""
    return [round(right / all_, 4) for all_, right in zip(reached, stood) if all_]


def asked_in_turns(each: int) -> Iterator[str]:
    """Questions of all kinds without an end; a number makes each of them new to a cache."""
    number = 0
    while True:
        for _, question in questions(each):
            number += 1
            yield f"({number}) {question}"
