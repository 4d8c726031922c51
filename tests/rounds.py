"""A server's loop over an engine, and its rounds moved by hand."""

from collections.abc import Callable, Sequence

from hw_profiles.step_cost import HardwareProfile
from scheduler.plan import SchedulingPolicy
from verify_server.engine.base import TargetEngine
from verify_server.round.block_target import BlockTarget
from verify_server.round.draft_stage import DraftStage
from verify_server.round.loop import VerifyLoop
from verify_server.round.machine import StepMachine, Work
from verify_server.round.step_item import StepItem
from verify_server.rules.decide import Outcome


def looping(
    engine: TargetEngine,
    policy: SchedulingPolicy,
    profile: HardwareProfile,
    clock: Callable[[], float] = lambda: 0.0,
    drafting: DraftStage | None = None,
    machine: type[StepMachine] = StepMachine,
    learns: bool = False,
    **memory: object,
) -> VerifyLoop:
    """`memory`: further arguments of `BlockTarget`."""
    target = BlockTarget(engine, drafting, **memory)  # type: ignore[arg-type]
    return VerifyLoop(machine(target, policy, profile, learns), clock)


def end(loop: VerifyLoop, work: Sequence[StepItem], outcomes: Sequence[Outcome] | None) -> None:
    """A step is over, and took no time; then the server drafts."""
    asks = loop.machine.end(Work(list(work)), outcomes, loop.clock(), 0.0)
    if asks:
        loop.machine.take(loop.machine.target.draft(asks))


def one_step(loop: VerifyLoop) -> list[StepItem]:
    """Plan, compute and commit; returns what was computed."""
    begun = loop.machine.begin(loop.clock())
    if not isinstance(begun, Work):
        return []
    end(loop, begun.items, loop.machine.target.step(begun.items))
    return begun.items
