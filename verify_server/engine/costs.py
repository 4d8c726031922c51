"""The first estimate of the cost of steps, measured before the first session."""

import logging
import time
from collections.abc import Callable, Sequence

from hw_profiles.learned import CostModel
from hw_profiles.step_cost import StepCost
from verify_server.engine.base import Segment, TargetEngine

log = logging.getLogger(__name__)

# Steps that are measured at the start, twice: sessions, tokens of each, scores of each. What drafts add to a step lies
# between them. The first four span what comes, else the fit takes the long ones for accidents. Chosen, as is the time
# for all of them: a large target on a small machine measures fewer.
MEASURED = ((1, 1, 1), (8, 1, 1), (8, 2, 2), (1, 32, 1), (1, 2, 2), (1, 4, 4))
MEASURE_S = 2.0


def measure(engine: TargetEngine, seed: StepCost, clock: Callable[[], float] = time.perf_counter) -> StepCost:
    """The cost of steps as some show it, the `seed` for what they do not show; before there are sessions.

    The first users of a server would else be planned for by guesses: what a row more costs on this machine.
    """
    model, began = CostModel(seed, engine.info.row_step), clock()
    try:
        _seconds(engine, _step(engine, *MEASURED[0]), clock)  # the first one sets up what all others use
        for shape in MEASURED * 2:
            if clock() - began > MEASURE_S:
                break
            step = _step(engine, *shape)
            tokens = sum(len(segment.tokens) for segment in step)
            model.observe(tokens, tokens, len(step), _seconds(engine, step, clock))
    except Exception:
        log.exception(
            "the target's steps could not be measured; their cost is guessed until sessions show it"
        )
        return seed
    return model.cost


def _seconds(engine: TargetEngine, step: Sequence[Segment], clock: Callable[[], float]) -> float:
    """That the step takes; what it wrote is forgotten."""
    started = clock()
    try:
        engine.forward(step)
        return clock() - started
    finally:
        engine.forget([block for segment in step for block in segment.blocks])


def _step(engine: TargetEngine, sessions: int, tokens: int, rows: int) -> Sequence[Segment]:
    """As many sessions and tokens as have room, each session in the first KV blocks that no other one has."""
    info = engine.info
    tokens = min(tokens, info.context_length, info.num_blocks * info.block_size)
    needed = -(-tokens // info.block_size)
    sessions = min(sessions, info.num_blocks // needed)
    blocks = [tuple(range(each * needed, (each + 1) * needed)) for each in range(sessions)]
    return [Segment((0,) * tokens, 0, held, min(rows, tokens)) for held in blocks]
