"""Where baselines are compared: four regimes of the target, and six cells named before anything was measured."""

from dataclasses import dataclass

from lab.testbed.fleet import Fleet, Group, Server

# Cheap positions at short context; much KV to read; many weights and cheap positions; little bandwidth.
REGIMES = {
    "dense-1k": Server(accelerator="a100-80", target="dense-8b", context=1024),
    "dense-8k": Server(accelerator="h200", target="dense-32b", context=8192),
    "moe": Server(accelerator="a100-80", target="moe-30b-a3b", context=4096),
    "hub": Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=1024),
}


@dataclass(frozen=True)
class Cell:
    """One regime, with users of one kind who want one pace."""

    regime: str
    device: str
    link: str
    users: int  # of the emulated runs
    pace: float  # tokens/s each of them wants

    @property
    def id(self) -> str:
        return f"{self.regime}, {self.device}, {self.link}"

    def fleet(self, *, draft_length: int = 4) -> Fleet:
        """The cell's devices at its regime's server, without a baseline's changes."""
        group = Group(self.users, self.device, self.link, draft_length=draft_length, pace=self.pace)
        return Fleet(REGIMES[self.regime], (group,))


CELLS = (
    Cell("dense-1k", "orin-nano-super", "wifi-good", users=32, pace=15),
    Cell("dense-8k", "orin-nano-super", "wifi-good", users=16, pace=15),
    Cell("dense-8k", "pi-5", "lte", users=16, pace=8),
    Cell("moe", "laptop-cpu", "5g", users=24, pace=15),
    Cell("hub", "orin-nano-super", "ethernet", users=16, pace=10),
    Cell("hub", "pi-5", "wifi-good", users=16, pace=5),
)
