"""What a round of each session brings and takes with each of its arms: the tables that an assignment is found in.

scheduler/goodput/__init__.py derives the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens, tokens_beside
from hw_profiles.step_cost import DraftingCost, HardwareProfile
from scheduler.estimates import Forecast
from scheduler.goodput.arms import ARMS, BOTH, LENGTHS
from scheduler.plan import SessionView

# Tokens still to be written for which a text is read: half of what may be written, and no more than these. Chosen.
ANSWER = 64
AHEAD = 8  # steps for which an assignment is made, about as many as from one review to the next
NO_DRAFTING = DraftingCost(0.0, 0.0, 0.0)
NO_FORECAST = Forecast(0.0, 0.0, 0.0, 0.0)
# What of a forecast counts, of a device's drafts and of the server's own
OF_DEVICE = attrgetter("first", "later", "delay_s", "draft_s", "earlier")
OF_OWN = attrgetter("first", "later", "apart")


def _table(forecasts: Sequence[Forecast], features: Callable[[Forecast], tuple[float, ...]]) -> Numbers:
    """[feature, forecast]; in one go, for numpy is slow with a list of tuples."""
    values = np.fromiter(chain.from_iterable(map(features, forecasts)), float)
    return np.ascontiguousarray(values.reshape(len(forecasts), -1).T)


def _whole(device: NDArray[np.int_], least: NDArray[np.int_]) -> NDArray[np.int_]:
    """[arm, session]: `least` tokens of the device in the place of the longest draft of its own, else none."""
    longest = np.arange(len(device)) == len(LENGTHS) - 1
    return np.where(longest[:, None], least, 0)


class RoundTable:
    """Of these sessions: arrays have one column per session, and a row per arm."""

    def __init__(self, sessions: Sequence[SessionView], profile: HardwareProfile) -> None:
        self._sessions = sessions
        devices, servers = [one.device for one in sessions], [one.server for one in sessions]
        self._servers = servers
        self._cost, self._step_tokens = profile.cost, profile.max_step_tokens
        self._drafting = profile.drafting or NO_DRAFTING
        self._contexts = np.array([one.context for one in sessions], float)
        self._longest = np.array([one.longest if one.forecast else 0 for one in devices])
        forecasts = [one.forecast or NO_FORECAST for one in devices]
        first, later, delay, draft, earlier = _table(forecasts, OF_DEVICE)
        self._has_own = np.array([one.forecast is not None for one in servers])
        self.arms = ARMS[bool(self._has_own.any())]
        # A rule that needs long drafts has two choices: none, and in the place of the longest one its own.
        self._least = np.array([one.least for one in devices])
        lengths = np.broadcast_to(self.arms.device[:, None], (len(self.arms.device), len(sessions)))
        if self._least.any():
            lengths = np.where(self._least > 0, _whole(self.arms.device, self._least), lengths)
        self._lengths = lengths
        self._tokens = 1 + accepted_tokens(first, later, lengths)
        self._own = self._own_tokens((first, later))
        away = (delay + lengths * draft) * (
            1 - earlier
        )  # `lengths * draft`: seconds for which the device drafts
        self._away = np.where(lengths > 0, away, 0.0)
        self._all = np.arange(len(sessions))

    # What follows is made when it is asked for: to tell a few new sessions the rule of the others takes little of it.

    @cached_property
    def _allowed(self) -> NDArray[np.bool_]:
        """[arm, session]: which arms a session may have."""
        device, own = self.arms.device[:, None], self.arms.own[:, None]
        fits = (self._lengths <= self._longest) & ((self._least == 0) | (self._lengths > 0) | (device == 0))
        return fits & ((own == 0) | self._has_own)

    @cached_property
    def _pace(self) -> Numbers:
        return np.array([one.pace for one in self._sessions], float)

    @cached_property
    def _positions(self) -> Numbers:
        """[arm, session]: of a step."""
        return self._lengths + self._own + 1.0

    @cached_property
    def _usual(self) -> Numbers:
        """[arm, session]: tokens of a round. Similar devices are treated alike: a lucky series of drafts says little of
        the next ones."""
        drafting, usual = self._longest > 0, self._tokens
        if drafting.any():
            usual = usual[:, drafting].mean(axis=1, keepdims=True)
        return np.where(self._least > 0, self._tokens, usual)

    @cached_property
    def _counts(self) -> Numbers:
        """How much each session counts in the next steps. One whose prompt is being computed counts here only for the
        steps after that. While a server computes the first prompts of many, these are all that there is to plan for."""
        prompts = np.array([one.uncomputed - 1 for one in self._sessions], float)
        steps = np.ceil(prompts.cumsum() / self._step_tokens)
        counts = np.where(prompts > 0, np.maximum(0.0, 1 - steps / AHEAD), 1.0)
        return counts if counts.any() else np.ones_like(counts)

    @cached_property
    def _read(self) -> Numbers:
        """[arm, session]: tokens of text that the server's drafter reads. Each token that is written is read, and long
        texts are paid for by what is written after them."""
        if not self.arms.server_drafts:
            return np.zeros(self._tokens.shape)
        debts = [one.server.unread / max(1.0, min(one.left / 2, ANSWER)) for one in self._sessions]
        return np.where(self.arms.own[:, None] > 0, self._tokens * (1 + np.array(debts)), 0.0)

    def _own_tokens(self, device: tuple[Numbers, Numbers]) -> Numbers:
        """[arm, session]: tokens of the server's draft that are expected; adds to `_tokens` what they bring.

        `device`: first and later chances of the device's drafts.
        """
        if not self.arms.server_drafts:
            return np.zeros(self._tokens.shape)
        own = self.arms.own[:, None]
        forecasts = [one.forecast or NO_FORECAST for one in self._servers]
        first, later, apart = _table(forecasts, OF_OWN)
        offered = np.array([one.share for one in self._servers])
        alone, both = own[: -len(BOTH)], own[-len(BOTH) :]
        gained = np.concatenate(
            (
                accepted_tokens(first, later, alone),
                apart * tokens_beside((first, later), device, both, self.arms.device[-len(BOTH) :, None]),
            )
        )
        self._tokens = self._tokens + np.where(own > 0, offered * gained, 0.0)
        return own * offered
