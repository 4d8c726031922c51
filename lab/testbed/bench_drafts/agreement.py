"""How often a draft says what the target wrote, by place: counted by text, so that both may have any vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import accumulate
from statistics import median
from time import monotonic

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
from lab.testbed.bench_drafts.config import BenchDraftsConfig
from lab.testbed.bench_drafts.target import OWN_ENDS, Found, Target, frame, written

PLACES = 8  # of a draft; so far the law goes
CHARACTERS = 700  # of a text that a question quotes
FEW_CHARACTERS = 200  # where steps are timed: of texts as short as the rows were measured with
END = b"\xff"  # of an answer: no text has such a byte

Pieces = Generator[Piece, None, None]
Draft = tuple[str, Callable[[str], Pieces]]  # its name, and what it says after a text


def questions(each: int, characters: int = CHARACTERS) -> list[tuple[str, str]]:
    """So many of each kind of text, the kinds in turns."""
    return [(kind, prompts(kind, characters)[number].text) for number in range(each) for kind in KINDS]


def draft_of(config: BenchDraftsConfig) -> Draft | None:
    """The one that is named. Raises UsageError, NotFound, Unauthorized and DraftSourceError."""
    if config.draft_url:
        found = find_server(draft_address(config.draft_url, config.draft_key), config.draft_model)
        dialect = dialect_of(found)

        def served(text: str) -> Pieces:
            said = stream(found.address, dialect.path, dialect.request(text), dialect.read, LOAD_S)
            with closing(said):
                yield from (piece for piece in said if piece is not None)

        return f"{found.model} at {found.address.place}", served
    if not config.draft_model:
        return None
    factory = LlamaCppFactory(config.draft_model)
    source = ModelText(factory.create_model(), factory.tokenizer())

    def local(text: str) -> Pieces:
        source.follow(b"")  # else what it drafted before comes at once, and its pace is not seen
        source.follow(text.encode())
        yield from source.pieces()

    return factory.name, local


async def agreement(target: Target, draft: Draft, each: int, every: int) -> Found:
    """The target's greedy texts, up to where it ends them; the draft goes on from every `every`-th place of each."""
    (name, after), paces = draft, list[float]()
    kinds = {kind: [[0, 0] for _ in range(PLACES)] for kind in KINDS}
    for kind, question in questions(each):
        say(f"a text and its drafts: {kind} ...")
        pieces = written(await target.ask(question, OWN_ENDS))
        for place in range(0, len(pieces), every):
            wanted = [piece.encode() for piece in pieces[place : place + PLACES]]
            before = frame(question) + "".join(pieces[:place])
            said, pace = _heard(after(before), sum(map(len, wanted)))
            paces += pace
            right, is_wrong = stood(wanted, said)
            for number, counts in enumerate(kinds[kind][: right + is_wrong]):
                counts[:] = counts[0] + (number < right), counts[1] + 1
    kinds["all"] = [[sum(each) for each in zip(*column)] for column in zip(*kinds.values())]
    ms = round(1000 * median(paces), 3) if paces else None
    return {"draft": name, "ms": ms, "kinds": kinds}  # by place: drafts that stood, and all


def _heard(pieces: Pieces, enough: int) -> tuple[bytes, list[float]]:
    """The bytes it said, and the seconds between its tokens where it said several."""
    said, times = b"", list[float]()
    with closing(pieces):
        for piece in pieces:
            said += piece.text + END * piece.is_end
            times.append(monotonic())
            if len(said) >= enough:
                break
    return said, [(times[-1] - times[0]) / (len(times) - 1)] if len(times) > 1 else []


def stood(wanted: Sequence[bytes], said: bytes) -> tuple[int, bool]:
    """How many places stand, and whether the next one does not; nothing may be said of it."""
    texts = list(accumulate(wanted))
    right = sum(map(said.startswith, texts))
    return right, right < len(texts) and not texts[right].startswith(said)
