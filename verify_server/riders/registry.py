"""All riders, in the order in which a session asks them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from verify_server.riders.answer_logprobs import AnswerLogprobs
from verify_server.riders.guide import GuideMasks
from verify_server.riders.images import PromptImages
from verify_server.riders.loose_marks import LooseMarks
from verify_server.riders.opening import Opening
from verify_server.riders.penalties import PenaltyCounts
from verify_server.riders.prompt_logprobs import PromptLogprobs
from verify_server.round.rider import Rider


async def _keeper_rider(opening: Opening) -> Rider | None:
    return opening.keeper.rider(opening) if opening.keeper else None


# Each makes the rider of a new sequence; None: it does not ask for that
RIDERS: tuple[Callable[[Opening], Awaitable[Rider | None]], ...] = (
    GuideMasks.of,
    PromptImages.of,
    PenaltyCounts.of,
    PromptLogprobs.of,
    AnswerLogprobs.of,
    _keeper_rider,
    LooseMarks.of,
)


async def riders_of(opening: Opening) -> tuple[Rider, ...]:
    """The riders of a new sequence. Raises what is wrong with its `Open`, and Overloaded."""
    found = [await make(opening) for make in RIDERS]
    return tuple([rider for rider in found if rider is not None])
