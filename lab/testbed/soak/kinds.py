"""The kinds of target that a soak breaks: one server of each engine and policy, one behind a relay, and clusters with
their gateways."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetKind:
    """What is served, and how."""

    name: str
    engine: str  # "torch" or "llamacpp"
    flags: tuple[str, ...] = ()
    replicas: int = 0
    proxy: bool = False
    edge: bool = False  # a real `opensled edge` is among its devices
    http: bool = False  # a client without a device is among its readers
    relay: bool = False  # a relay stands between its devices and it
    sees: bool = False  # it is asked about pictures
    keeps: bool = False  # it keeps the text of its fleet

    @property
    def model(self) -> str:
        return "tiny-vision" if self.sees else "tiny"

    @property
    def draft(self) -> str:
        """The model of its devices."""
        return f"{self.model}-draft"


# Little KV memory, so that sequences push each other out all the time.
_TIGHT = ("--kv-tokens", "1024")
_DRAFTER = "--server-drafter"
KINDS = (
    TargetKind(
        "torch-goodput",
        "torch",
        ("--policy", "goodput", _DRAFTER, "cacheback", *_TIGHT),
        edge=True,
        http=True,
    ),
    TargetKind("torch-fcfs", "torch", ("--policy", "fcfs", "--draft-wait", "0.25", _DRAFTER, "model")),
    TargetKind("torch-static", "torch", ("--policy", "static")),
    TargetKind("torch-head", "torch", (_DRAFTER, "ctc", *_TIGHT), keeps=True),
    TargetKind("llamacpp-goodput", "llamacpp", ("--policy", "goodput", _DRAFTER, "lookup"), http=True),
    TargetKind("pictures", "torch", (_DRAFTER, "exit", *_TIGHT), http=True, edge=True, sees=True),
    TargetKind("relay", "torch", relay=True),
    TargetKind("replicas", "torch", (_DRAFTER, "cacheback"), replicas=2, http=True),
    TargetKind("replicas-proxy", "torch", (_DRAFTER, "specformer"), replicas=2, proxy=True, edge=True),
)
