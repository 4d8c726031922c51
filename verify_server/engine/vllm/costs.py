"""The first estimate of the cost of vLLM's steps, measured before the first session."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from hw_profiles.learned import CostModel
from hw_profiles.step_cost import StepCost
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.protocol import EndRules
from verify_server.engine.costs import MEASURE_S, MEASURED
from verify_server.engine.vllm.decoding import Decode
from verify_server.rules.base import DraftCheck

if TYPE_CHECKING:
    from verify_server.engine.vllm.core import VllmCore

log = logging.getLogger(__name__)


def measure(core: VllmCore, seed: StepCost) -> StepCost:
    """The cost as some steps show it; the `seed` for what they do not show."""
    model, began = CostModel(seed), time.perf_counter()
    try:
        for turn, (sessions, tokens, _) in enumerate((MEASURED[0], *MEASURED * 2)):
            if turn > 1 and time.perf_counter() - began > MEASURE_S:
                break
            seconds = _seconds(core, sessions, tokens)
            if turn:  # the first one sets up what all others use
                model.observe(sessions * tokens, sessions * (tokens + 1), sessions, seconds)
    except Exception:
        log.exception("vLLM's steps could not be measured; their cost is guessed until sessions show it")
        return seed
    return model.cost


def _seconds(core: VllmCore, sessions: int, tokens: int) -> float:
    """That a step takes in which each of some sessions verifies a draft of all `tokens` but one."""
    tokens = min(tokens, core.longest_draft + 1, core.context_length - 2)
    names = [f"measured {number}" for number in range(sessions)]
    check = DraftCheck((DraftToken(0),) * (tokens - 1), 2, SamplingParams(temperature=0.0), b"")
    try:
        for name in names:
            core.add(name, (0, 0), EndRules(frozenset(), frozenset(), tokens + 3), salt=name)
        core.step({})
        started = time.perf_counter()
        core.step(dict.fromkeys(names, Decode(check)))
        return time.perf_counter() - started
    finally:
        core.abort(names)
        core.step({})
