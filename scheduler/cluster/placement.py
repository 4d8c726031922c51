"""Which replica takes a newcomer: a pure function of what the replicas last said of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

STALE = 3.0  # seconds after which a silent replica counts as gone: six heartbeats


class Heartbeat(NamedTuple):
    """What a replica says of itself. `at` is on the clock of whoever reads it: machines share none."""

    replica: str  # its id; a replica that was restarted has a new one
    address: str  # HOST:PORT of its gRPC server
    at: float  # seconds: when it was so
    free_blocks: int  # KV blocks it could give a newcomer
    block_size: int  # tokens in one
    sessions: int  # those with a reader
    places: int  # most sessions at the same time
    step_s: float  # expected seconds of its next step
    queue_s: float  # expected seconds until a newcomer's first token is computed
    token_s: float  # seconds to compute one token of a prompt
    model_id: str
    fingerprint: str  # of the vocabulary
    draining: bool = False
    prefixes: frozenset[bytes] = frozenset()  # keys of KV blocks it holds
    inner: str = ""  # HOST:PORT on the cluster's interface, for gateways only


class PlacementRequest(NamedTuple):
    """A session to place."""

    length: int = 0  # tokens that it opens with, or a guess; 0 = unknown
    prompt_keys: tuple[bytes, ...] = ()  # of its full KV blocks, from the first on; () = unknown
    wants: str = ""  # the replica that remembers it; "" = none
    model_id: str = ""  # "" = any
    fingerprint: str = ""  # "" = any


class Placement(NamedTuple):
    """A newcomer who was sent to a replica; its heartbeat tells of him only later."""

    replica: str
    at: float  # seconds, on the clock of the heartbeats
    length: int


class Directory(Protocol):
    """The replicas as they were last heard of, kept up to date behind the caller's back."""

    def replicas(self) -> Sequence[Heartbeat]: ...


def choose(
    heartbeats: Iterable[Heartbeat], newcomer: PlacementRequest, now: float, recent: Sequence[Placement] = ()
) -> Heartbeat | None:
    """The replica that remembers the newcomer, else the one expected to serve him soonest; None: all are full.

    `recent` are placements that a heartbeat may not know of yet, so that a burst does not all go to one replica. Where
    nobody serves the newcomer's model any replica will do: it refuses him in its own words.
    """
    alive = [beat for beat in heartbeats if not beat.draining and now - beat.at < STALE]
    home = next((beat for beat in alive if beat.replica == newcomer.wants), None)
    if home is not None:
        return home
    coming = {beat.replica: _coming(beat, recent) for beat in alive}
    open_ones = [beat for beat in alive if beat.sessions + len(coming[beat.replica]) < beat.places]
    fitting = [beat for beat in open_ones if _serves(beat, newcomer)] or open_ones
    return min(fitting, key=lambda beat: _cost(beat, newcomer, coming[beat.replica]), default=None)


def _coming(beat: Heartbeat, recent: Iterable[Placement]) -> list[int]:
    """Lengths of those who were sent to this replica since its heartbeat."""
    return [place.length for place in recent if place.replica == beat.replica and place.at >= beat.at]


def _serves(beat: Heartbeat, newcomer: PlacementRequest) -> bool:
    return newcomer.model_id in ("", beat.model_id) and newcomer.fingerprint in ("", beat.fingerprint)


def _cost(beat: Heartbeat, newcomer: PlacementRequest, coming: Sequence[int]) -> tuple[bool, float, str]:
    """Whether somebody would lose his KV for the newcomer, then seconds."""
    missing = max(0, newcomer.length - _covered(beat, newcomer))
    crowd = beat.sessions + len(coming)
    # Steps of an answer become slower as the replica fills up, which its last step does not tell.
    step_s = beat.step_s * (1 + crowd / beat.places)
    seconds = beat.queue_s + step_s + beat.token_s * (missing + sum(coming))
    short = beat.free_blocks * beat.block_size < missing + sum(coming)
    return short, seconds, beat.replica


def _covered(beat: Heartbeat, newcomer: PlacementRequest) -> int:
    """Tokens of the prompt whose KV the replica holds; a block counts only after all those before it."""
    blocks = 0
    for key in newcomer.prompt_keys:
        if key not in beat.prefixes:
            break
        blocks += 1
    return blocks * beat.block_size
