"""How often a draft says what the target wrote, by place: counted by text, so that both may have any vocabulary."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
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

PLACES = 8  # of a draft; so far the law goes
CHARACTERS = 700  # of a text that a prompt quotes

Pieces = Generator[Piece, None, None]


class DraftText(NamedTuple):
    """A draft: the pieces that follow a text."""

    name: str
    after: Callable[[str], Pieces]


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
    found = find_server(draft_address(url, key_file), model)
    dialect = dialect_of(found)

    def after(text: str) -> Pieces:
        with closing(
            stream(found.address, dialect.path, dialect.request(text), dialect.read, LOAD_S)
        ) as said:
            yield from (piece for piece in said if piece is not None)

    return DraftText(f"{found.model} at {found.address.place}", after)


def local_draft(model: str) -> DraftText:
    """A draft model of this machine. Raises NotFound."""
    factory = LlamaCppFactory(model)
    source = ModelText(factory.create_model(), factory.tokenizer())

    def after(text: str) -> Pieces:
        source.follow(b"")  # else what it drafted before comes at once, and its pace is not seen
        source.follow(text.encode())
        yield from source.pieces()

    return DraftText(factory.name, after)


async def record(target: Target, each: int, tokens: int) -> list[Recorded]:
    """Greedy texts, which end where the target ends them."""
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
    reached, stood = ([sum(column) for column in zip(*lists)] for lists in zip(*kinds.values()))
    return {
        "draft": draft.name,
        "ms": round(1000 * median(paces), 3) if paces else None,
        "kinds": {kind: {"reached": reached, "stood": stood} for kind, (reached, stood) in kinds.items()},
        "by_place": [round(right / all_, 4) for all_, right in zip(reached, stood) if all_],
    }


def _heard(pieces: Pieces, enough: int, clock: Callable[[], float]) -> tuple[bytes, bool, list[float]]:
    """The bytes it said, whether it ended its answer there, and the seconds between its tokens."""
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
