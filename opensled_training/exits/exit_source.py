"""Which hidden states of a target are kept for exits: those that leave the exits, and those that they imitate."""

from __future__ import annotations

from dataclasses import dataclass

from opensled_training.heads.capture import Source

FUSED = 3  # last layers whose outputs are imitated (arXiv 2510.22641)


@dataclass(frozen=True)
class ExitSource(Source):
    """A target whose states are tapped for exits after each of `exits` layers."""

    exits: tuple[int, ...] = ()

    @property
    def taps(self) -> tuple[int, ...]:
        """Numbered as in verify_server/engine/tap.py; the last one is that of the final norm."""
        return tuple(sorted({*self.exits, *imitated(self.network.config.num_hidden_layers)}))


def imitated(layers: int) -> tuple[int, ...]:
    """Taps of the states that an exit of a target of so many layers imitates."""
    return tuple(range(layers - FUSED + 1, layers + 1))


def with_exits(source: Source, exits: tuple[int, ...]) -> ExitSource:
    return ExitSource(source.name, source.network, source.text, source.dtype, exits)
