"""Targets of a soak: one server, a server behind a relay, or a cluster."""

import secrets

from lab.testbed.processes import Process
from lab.testbed.soak.cluster_target import ClusterTarget
from lab.testbed.soak.kinds import TargetKind
from lab.testbed.soak.target import Part, Place, SoakTarget, private_file

SERVER, RELAY, WIDE_AREA = "server", "relay", "wide-area link"
LINK = "wan-80"  # profile of the link between a relay and the server above
HUB_LIMITS = "max_sessions=32"  # of the relay at the server above, for all its devices


class ServerTarget(SoakTarget):
    """One `opensled serve`."""

    main = SERVER

    def __init__(self, kind: TargetKind, place: Place) -> None:
        super().__init__(kind, place)
        self._tokens = place.tokens
        self.parts[SERVER] = Part(self._serve)

    def _serve(self, listen: str) -> Process:
        engine = self.kind.engine
        # llama.cpp computes as it does.
        precision = ("--dtype", "float64") if engine == "torch" else ()
        fixed = ("--model", self.kind.model, "--engine", engine, *precision, "--threads", "1")
        known = ("--tokens", str(self._tokens), "--log-level", "info")
        return self._listening(["serve", "--listen", listen, *fixed, *known, *self.flags], SERVER)


class RelayTarget(ServerTarget):
    """One `opensled relay`, and behind a wide-area link the `opensled serve` above it."""

    main = RELAY

    def __init__(self, kind: TargetKind, place: Place) -> None:
        super().__init__(kind, place)
        hub, folder = secrets.token_hex(16), place.folder
        self._hub_token = private_file(folder / "hub.token", hub)
        self._tokens = private_file(
            folder / "upper.tokens", f"{place.tokens.read_text()}{hub} hub {HUB_LIMITS}\n"
        )
        self.parts[WIDE_AREA] = Part(self._link)
        self.parts[RELAY] = Part(self._relay)

    @property
    def origin(self) -> str:
        """See `SoakTarget`."""
        return self.parts[SERVER].address

    def _link(self, listen: str) -> Process:
        flags = ("--profile", LINK, "--to", self.origin, "--listen", listen)
        return self._listening(flags, WIDE_AREA, "lab.testbed.link_relay")

    def _relay(self, listen: str) -> Process:
        above = ("--upstream", self.parts[WIDE_AREA].address, "--upstream-token-file", str(self._hub_token))
        known = ("--tokens", str(self.place.tokens), "--log-level", "info")
        return self._listening(["relay", "--listen", listen, "--threads", "1", *above, *known], RELAY)


def target_of(kind: TargetKind, place: Place) -> SoakTarget:
    if kind.replicas:
        return ClusterTarget(kind, place)
    return RelayTarget(kind, place) if kind.relay else ServerTarget(kind, place)
