"""What policy `goodput` chooses among for a session, and what a choice for all sessions comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers

LENGTHS = (0, 1, 2, 3, 4, 6, 8)  # draft lengths that are tried, tokens; each costs planning time
BOTH = (2, 4, 8)  # those that are tried for device and server together
RESPONSE = -1  # the rule by which each session gets the arm that is best for it


class Arms(NamedTuple):
    """The choices for a session, one at each index: tokens that its device drafts, and that the server drafts for it.

    Index 0 is plain decoding. Then come the lengths of the device, those of the server, and those of both, each in
    ascending order.
    """

    device: NDArray[np.int_]
    own: NDArray[np.int_]

    @property
    def server_drafts(self) -> bool:
        return len(self.own) > len(LENGTHS)

    @property
    def drafted(self) -> Numbers:
        """Tokens of the longest draft of each arm."""
        return np.maximum(self.device, self.own).astype(float)

    @classmethod
    def where(cls, server_drafts: bool) -> Arms:
        if not server_drafts:
            return cls(np.array(LENGTHS), np.zeros(len(LENGTHS), int))
        own, nothing = LENGTHS[1:], [0] * len(LENGTHS)
        return cls(np.array([*LENGTHS, *nothing[1:], *BOTH]), np.array([*nothing, *own, *BOTH]))


ARMS = {server_drafts: Arms.where(server_drafts) for server_drafts in (False, True)}


class PromptLoad(NamedTuple):
    """Prompts beside drafts and decoding: some steps have a piece of one, most have none."""

    rate: float = 0.0  # prompt tokens/s
    steps: float = 0.0  # steps/s that have some


@dataclass(frozen=True)
class MarginalCosts:
    """What a session's places in steps cost all sessions: seconds of a step for each, and tokens/s for each second."""

    step_s: float = 0.0
    busy: float = 1.0  # mean sessions in a step, at most 1
    token_s: float = 0.0
    context_s: float = 0.0
    session_s: float = 0.0
    slowdown: float = 0.0  # tokens/s that all sessions lose if steps become a second longer
    # Passes of the server's drafter in a step that its sessions share, and by how many: who wants more pays them alone
    passes: float = 0.0
    sharing: float = 1.0


NO_COSTS = MarginalCosts()


class Assignment(NamedTuple):
    """The arms of all sessions, and what they come to."""

    rule: int  # the arm of every session for which it is allowed, or RESPONSE
    arms: NDArray[np.int_]  # index into `Arms`, of each session
    worth: float  # `rate` and `promised`
    rate: float  # tokens/s of all sessions
    step_s: float
    busy: float  # mean sessions in a step; below 1 the target idles in between
    costs: MarginalCosts  # by which RESPONSE found the lengths
    promised: float  # tokens/s that kept promises count for
