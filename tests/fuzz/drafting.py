"""Targets for what decides over rows and never over text: confidences, and proposals of the server's own drafter."""

from collections.abc import Sequence
from functools import cache

from opensled.core.errors import OpenSledError
from opensled.core.messages import Draft, DraftBlock, DraftToken
from opensled.core.trees import confidences as confidences_of
from opensled.core.trees import likeliest_first, list_trials, path_to, without_twins
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec
from scheduler.estimates import DeviceBook, DraftEstimate
from tests.fakes import continuation
from tests.fuzz import messages
from tests.fuzz.choices import Choices
from tests.fuzz.rooms import Room
from verify_server.round.drafter import Ask, Proposal, ServerDrafter

OPEN = messages.plain_open().SerializeToString()
TEXT = continuation((1, 2, 3), 12)


def confidences(data: bytes) -> None:
    """Drafts with any confidences from the wire, and what a server learns of each: chances stay chances, a tree stays
    a tree, and no other tenant learns of it."""
    choose, book = Choices(data), DeviceBook()
    sequences = [book.of("a", choose.pick(("", "b", "c"))) for _ in range(2)]
    bystander = book.of("bystander", "")
    before = bystander.reach((0.25, 0.5, 1.0)), bystander.forecast
    for _ in range(24):
        if choose.over:
            break
        try:
            draft = codec.decode_client(pb.ClientMessage.FromString(_told(choose)))
        except OpenSledError:
            continue
        assert isinstance(draft, Draft)
        _learn(choose, choose.pick(sequences), draft.block)
    assert before == (bystander.reach((0.25, 0.5, 1.0)), bystander.forecast)


def _told(choose: Choices) -> bytes:
    return messages.draft(choose, counter=1, base=3).SerializeToString()


def _learn(choose: Choices, estimate: DraftEstimate, block: DraftBlock) -> None:
    """As `Session` has it: the order of a tree by what was learned, then a verdict on it."""
    if block.parents:
        block = without_twins(block)
    reach = estimate.reach(confidences_of(block), block.parents)
    assert len(reach) in (0, len(block.tokens)) and all(0 <= chance <= 1 for chance in reach)
    if block.parents and reach:
        block = likeliest_first(block, reach)
        assert all(-1 <= parent < index for index, parent in enumerate(block.parents))
    parents = block.parents or range(-1, len(block.tokens) - 1)
    path = path_to(parents, choose.below(len(block.tokens))) if block.tokens and choose.flag() else []
    estimate.add_verdict(len(block.tokens), len(path), list_trials(block, path))


class Whims(ServerDrafter):
    """Proposes whatever a fuzzer decides, right drafts included."""

    def __init__(self) -> None:
        self.choose = Choices(b"")

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        if self.choose.byte() == 255:
            raise RuntimeError("out of order")
        return [self._proposal(ask) for ask in asks][: self.choose.pick((99, 99, 99, 1, 0))]

    def forget(self, session: int) -> None:
        if self.choose.byte() == 255:
            raise RuntimeError("out of order")

    def _proposal(self, ask: Ask) -> Proposal:
        choose = self.choose
        ids = (
            TEXT[ask.length - 3 :]
            if choose.flag()
            else choose.some(choose.small_id if choose.flag() else choose.id)
        )
        tokens = tuple([DraftToken(id - choose.pick((0, 0, 0, 100)), choose.number()) for id in ids])
        base = ask.length if choose.byte() < 230 else choose.id()
        parents = self._parents(len(ids)) if choose.flag() else ()
        counts = (0, 0) if choose.flag() else (choose.id(), choose.pick((0, 3, -1, 2.5, float("nan"))))
        return Proposal(DraftBlock(base, tokens, parents), *counts)

    def _parents(self, tokens: int) -> tuple[object, ...]:
        """Of a tree mostly, and now and then of none."""
        choose = self.choose
        tree = [choose.below(place + 1) - 1 for place in range(tokens)]
        broken = choose.pick((0, 0, 0, 1, -2, 0.5, None)) if tree else 0
        return tuple(tree if not broken else [*tree[:-1], broken] + [0] * choose.below(2))


@cache
def room() -> Room:
    return Room(Whims())


def server_proposals(data: bytes) -> None:
    """A sequence for which the server's drafter and its device draft anything: what is told is the target's text."""
    choose = Choices(data)
    room().drafter.choose = choose
    with room().visit():
        wire = room().connect()
        room().say(wire, OPEN)
        for counter in range(1, 16):
            room().step()
            if choose.over:
                break
            if choose.byte() % 3 == 0:
                room().say(wire, messages.draft(choose, counter, 3 + choose.below(8)).SerializeToString())
        told = [pb.ServerMessage.FromString(payload) for payload in wire.down]
        for verdict in [each.verdict for each in told if each.HasField("verdict")]:
            place = verdict.base - 3
            assert list(verdict.tokens) == TEXT[place : place + len(verdict.tokens)]
