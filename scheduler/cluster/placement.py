"""Which replica takes a new session: a pure function of the latest heartbeats."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from opensled.metrics.answer_counts import Counted

STALE = 3.0  # seconds after which a silent replica counts as gone: six heartbeats (`ray_runtime.BEAT`)


class Heartbeat(NamedTuple):
    """What a replica says of itself. `at` is on the reader's clock: machines share no clock."""

    replica: str  # its id; a replica that was restarted has a new one
    address: str  # HOST:PORT of its gRPC server
    at: float  # seconds: when it was sent
    free_tokens: int  # tokens of KV that a new session can get
    prefix_size: int  # tokens that one key of `prefixes` stands for
    sessions: int  # those with a reader
    places: int  # most sessions at the same time
    step_s: float  # expected seconds of its next step
    queue_s: float  # expected seconds until the first token of a new session is computed
    token_s: float  # seconds to compute one token of a prompt
    model_id: str
    fingerprint: str  # of the vocabulary
    draining: bool = False
    prefixes: frozenset[bytes] = frozenset()  # keys of beginnings of texts whose KV it holds
    inner: str = ""  # HOST:PORT on the cluster's interface, for gateways only
    answers: Counted = ()  # to devices


class PlacementRequest(NamedTuple):
    """A session to place."""

    length: int = 0  # tokens that it opens with, or a guess; 0 = unknown
    prompt_keys: tuple[bytes, ...] = ()  # of its beginnings, the shortest first; () = unknown
    wants: str = ""  # id of the replica that holds the session; "" = none
    model_id: str = ""  # "" = any
    fingerprint: str = ""  # "" = any


class Placement(NamedTuple):
    """A session that was sent to a replica; the replica's next heartbeats count it."""

    replica: str
    at: float  # seconds, on the clock of the heartbeats
    length: int


class Directory(Protocol):
    """The latest heartbeats of all replicas, kept up to date in the background."""

    def replicas(self) -> Sequence[Heartbeat]: ...


def choose(
    heartbeats: Iterable[Heartbeat], request: PlacementRequest, now: float, recent: Sequence[Placement] = ()
) -> Heartbeat | None:
    """The replica that holds the session, else the one that is expected to serve it first; None: all are full.

    `recent`: placements that no heartbeat counts yet, so that a burst does not go to one replica. If no replica serves
    the requested model, any replica is chosen: it refuses the session with the reason.
    """
    alive = [beat for beat in heartbeats if not beat.draining and now - beat.at < STALE]
    home = next((beat for beat in alive if beat.replica == request.wants), None)
    if home is not None:
        return home
    coming = {beat.replica: _coming(beat, recent) for beat in alive}
    open_ones = [beat for beat in alive if beat.sessions + len(coming[beat.replica]) < beat.places]
    fitting = [beat for beat in open_ones if _serves(beat, request)] or open_ones
    return min(fitting, key=lambda beat: _cost(beat, request, coming[beat.replica]), default=None)


def _coming(beat: Heartbeat, recent: Iterable[Placement]) -> list[int]:
    """Lengths of the sessions that were sent to this replica since its heartbeat."""
    return [place.length for place in recent if place.replica == beat.replica and place.at >= beat.at]


def _serves(beat: Heartbeat, request: PlacementRequest) -> bool:
    return request.model_id in ("", beat.model_id) and request.fingerprint in ("", beat.fingerprint)


def _cost(beat: Heartbeat, request: PlacementRequest, coming: Sequence[int]) -> tuple[bool, float, str]:
    """Whether another session would lose its KV, then expected seconds; the id breaks ties."""
    missing = max(0, request.length - _count_cached(beat, request))
    sessions = beat.sessions + len(coming)
    # Steps of an answer become slower as the replica fills up; the seconds of its last step do not show that.
    step_s = beat.step_s * (1 + sessions / beat.places)
    seconds = beat.queue_s + step_s + beat.token_s * (missing + sum(coming))
    short = beat.free_tokens < missing + sum(coming)
    return short, seconds, beat.replica


def _count_cached(beat: Heartbeat, request: PlacementRequest) -> int:
    """Tokens of the prompt whose KV the replica holds; a key counts only after all those before it."""
    keys = 0
    for key in request.prompt_keys:
        if key not in beat.prefixes:
            break
        keys += 1
    return keys * beat.prefix_size
