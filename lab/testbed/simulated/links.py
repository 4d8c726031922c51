"""How long messages travel in a simulation, and how many bytes they are."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from hw_profiles import catalog
from hw_profiles.profiles import LinkProfile
from lab.testbed.link_model import LinkModel
from opensled.core.messages import Draft, DraftBlock, DraftToken, Limits, Open, Opened, Verdict
from opensled.wire.codec import encode_client, encode_server

FRAME = 14  # bytes around a message: 5 of gRPC, 9 of an HTTP/2 data frame
HEADERS = 150  # bytes of HTTP/2 headers with which a stream begins, each way, once their names are compressed
TYPICAL_ID, TYPICAL_BASE = 1000, 300  # two bytes each in protobuf


class Beside:
    """No link: one machine. A drafter beside the target has its drafts ready for the step after the verdict."""

    def deliver_at(self, now: float, size: int) -> float:
        return now


class OneByOne:
    """Several links one after another; what is between two of them takes no time."""

    def __init__(self, links: Sequence[LinkModel]) -> None:
        self._links = links

    def deliver_at(self, now: float, size: int) -> float:
        for link in self._links:
            now = link.deliver_at(now, size)
        return now


class Ways(NamedTuple):
    """Both directions of one device's link."""

    up: LinkModel | OneByOne | Beside
    down: LinkModel | OneByOne | Beside


def ways(link: str, seed: int) -> Ways:
    """Of a link's profile, or of several with + between, the device's first; "" = none. Raises NotFound for a link that
    does not exist."""
    if not link:
        return Ways(Beside(), Beside())
    up, down = (
        [LinkModel(profile, seed, up=up) for profile in map(_profile, link.split("+"))]
        for up in (True, False)
    )
    return Ways(up[0], down[0]) if len(up) == 1 else Ways(OneByOne(up), OneByOne(down[::-1]))


@cache
def _profile(link: str) -> LinkProfile:
    return catalog.link(link)


@cache
def draft_bytes(tokens: int) -> int:
    """Payload bytes on the wire of a draft block of `tokens` tokens."""
    block = DraftBlock(TYPICAL_BASE, (DraftToken(TYPICAL_ID),) * tokens)
    return FRAME + int(encode_client(Draft(1, block)).ByteSize())


@cache
def verdict_bytes(tokens: int) -> int:
    """Payload bytes on the wire of a verdict with `tokens` tokens."""
    verdict = Verdict(TYPICAL_BASE, (TYPICAL_ID,) * tokens, num_accepted=1, answers=1)
    return FRAME + int(encode_server(verdict).ByteSize())


@cache
def open_bytes(prompt: int) -> int:
    """Payload bytes with which a sequence is opened, its prompt sent as `prompt` ids."""
    return HEADERS + FRAME + int(encode_client(Open((TYPICAL_ID,) * prompt)).ByteSize())


@cache
def opened_bytes(prompt: int) -> int:
    """Payload bytes of the answer to that."""
    opened = Opened((TYPICAL_ID,) * prompt, bytes(16), bytes(64), Limits(16, 4096))
    return HEADERS + FRAME + int(encode_server(opened).ByteSize())
