"""What a device asks of its server where a task does not say."""

import secrets
from dataclasses import dataclass
from typing import Any

from opensled.cli import paired
from opensled.core.answer import Task


def own_name(token_file: str) -> str:
    """The name of a device that was given none: the one that it is paired under, if it goes by that token; else drawn
    anew, for the server of others need not know a machine's name."""
    return paired.name_of(token_file) or f"unnamed-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class RequestDefaults:
    """The fields of `Open` that a device has its own values for."""

    pace: float = 0.0  # tokens/s, 0 = no promise
    background: bool = False
    device: str = ""  # its name; the server remembers under it how well its drafts are accepted

    def opening(self, task: Task, drafts: bool) -> dict[str, Any]:
        """Fields of `Open`. Without drafts the device has no name: the server's record of its drafts does not apply."""
        return {
            "pace": self.pace if task.pace is None else task.pace,
            "background": self.background if task.background is None else task.background,
            "device": self.device if drafts else "",
        }
