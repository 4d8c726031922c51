"""Where a gateway sends a sequence, by the facts of its `Open` and a memory of earlier placements."""

import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from opensled.core.errors import Overloaded
from opensled.core.messages import ChatMessage, Open, is_chat
from scheduler.cluster.placement import STALE, Heartbeat, Placement, PlacementRequest, choose
from verify_server.access.signing import TokenSigner
from verify_server.admission.input_processor import CHARACTERS, length_of
from verify_server.kv.prefix import prefix_keys

# All chosen.
RETRY_AFTER = 1.0  # seconds, in which a replica may come back or a sequence end
MAX_KEYS = 256  # pieces of a prompt that are compared: 4,096 tokens if blocks have 16
MAX_REMEMBERED = 1 << 16  # entries of each memory


class ReplicaRouter:
    """Chooses a replica for each `Open`. Its memory only saves time: a restarted gateway works without it."""

    def __init__(
        self,
        serving: Callable[[], Sequence[Heartbeat]],
        signer: TokenSigner,
        prefix_key: bytes,
    ) -> None:
        """`serving`: the replicas that can be reached now; `prefix_key`: the secret behind their prefix keys."""
        self._serving, self._signer, self._prefix_key = serving, signer, prefix_key
        self._recent: deque[Placement] = deque()
        # Piece of a prompt -> the last replica that read it
        self._pieces: OrderedDict[bytes, str] = OrderedDict()
        # Resume token -> its replica, if sent there once
        self._routed: OrderedDict[bytes, str] = OrderedDict()

    def place(self, message: Open, tenant: str) -> Heartbeat:
        """The replica for an `Open` of `tenant`; raises Overloaded if none can take it."""
        home, avoid = self._home(message.resume_token, tenant)
        replicas = self._serving()
        reachable = [beat for beat in replicas if beat.replica != avoid] or replicas
        size = min((beat.prefix_size for beat in reachable), default=1)
        keys = self._keys(message, tenant, size)
        length = length_of(message.prompt) + len(message.committed)
        request = PlacementRequest(length, keys, home, message.model_id, message.fingerprint)
        now = time.monotonic()  # as of the heartbeats
        self._forget(now)
        chosen = choose([self._knowing(beat, keys) for beat in reachable], request, now, self._recent)
        if chosen is None:
            raise Overloaded("no replica takes a sequence now; try again", retry_after=RETRY_AFTER)
        self._recent.append(Placement(chosen.replica, now, length))
        for key in keys:
            _remember(self._pieces, key, chosen.replica)
        return chosen

    def _home(self, token: bytes, tenant: str) -> tuple[str, str]:
        """(replica with the session, replica to avoid); "" = none.

        An opened sequence has a new token. So a device that comes back with a token that was routed before did not
        reach that replica, even if the gateway reaches it.
        """
        replica, begun = self._signer.home_of(token, tenant) if token else ("", False)
        if not begun or token in self._routed:
            return "", replica
        _remember(self._routed, token, replica)
        return replica, ""

    def _keys(self, message: Open, tenant: str, size: int) -> tuple[bytes, ...]:
        """Keys of the pieces of a prompt, `size` tokens long: of token ids as in the replicas, of text by its bytes.

        Pictures are in every key, for their placeholders are equal. The gateway does not tokenize text, which would
        double that cost; so it knows only texts that it routed itself.
        """
        prompt = message.prompt
        tenant = "\0".join([tenant, *[image.digest.hex() for image in message.images]])
        if isinstance(prompt, str) or is_chat(prompt):
            return tuple(islice(_pieces(prompt, tenant, size), MAX_KEYS))
        ids = (*prompt, *message.committed)[: MAX_KEYS * size + 1]
        return prefix_keys(ids, tenant, self._prefix_key, size)

    def _knowing(self, beat: Heartbeat, keys: Sequence[bytes]) -> Heartbeat:
        """`beat` with the pieces of a prompt that this gateway sent there before."""
        known = [key for key in keys if self._pieces.get(key) == beat.replica]
        return beat._replace(prefixes=beat.prefixes.union(known)) if known else beat

    def _forget(self, now: float) -> None:
        """Drop placements that all heartbeats in use include."""
        while self._recent and now - self._recent[0].at > STALE:
            self._recent.popleft()


def _remember(memory: OrderedDict[bytes, str], key: bytes, replica: str) -> None:
    memory[key] = replica
    memory.move_to_end(key)
    if len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)


def _pieces(prompt: str | tuple[ChatMessage, ...], tenant: str, tokens: int) -> Iterator[bytes]:
    """A key for each piece of a text, about so many tokens long; it includes all text before the piece."""
    turns = [prompt] if isinstance(prompt, str) else [f"{turn.role}\0{turn.content}\0" for turn in prompt]
    data, size = "".join(turns).encode(errors="surrogatepass"), tokens * CHARACTERS
    chain = hashlib.blake2b(tenant.encode(), digest_size=16, person=b"opensled-text")
    for start in range(0, len(data) - size + 1, size):
        chain.update(data[start : start + size])
        yield chain.digest()
