"""Processor time of the server's core for each session and step: plan, fit, commit; without transport and arithmetic.

    python -m lab.benchmarks.core_us [--quick]

Compare two trees by running it on both in turns: a single run says little on a busy machine.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hw_profiles.step_cost import HardwareProfile
from lab.benchmarks.null_engine import CANNED, NullEngine
from lab.benchmarks.program import exit_code, parser_of, table
from opensled.core.messages import Draft, DraftBlock, DraftToken, SamplingParams
from opensled.core.protocol import EndRules
from scheduler import POLICIES
from scheduler.plan import PolicyOptions
from verify_server.kv.memory import SequenceMemory
from verify_server.round.block_target import BlockTarget
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.machine import StepMachine, Work
from verify_server.round.offer import DraftLimits
from verify_server.round.sequence import Sequence
from verify_server.round.session import Session
from verify_server.round.sources import DraftSources
from verify_server.round.terms import Terms
from verify_server.rules.match import Match

VOCABULARY, PROMPT, TOKENS = 4096, range(10, 42), 200_000
DRAFT = (DraftToken(CANNED),) * 4
STEP_S = 7.3e-3  # that the machine is told of a step
WARM_STEPS = 4  # before the first drafts
PARTS = ("submit", "begin", "step", "end", "drain")


async def processor_us(policy: str, sessions: int, drafts: bool, steps: int) -> dict[str, float]:
    """Microseconds of each part for each session and step."""
    target = BlockTarget(NullEngine(VOCABULARY))
    chosen = POLICIES.get(policy).of(PolicyOptions(draft_wait=0.05))
    machine = StepMachine(target, chosen, HardwareProfile(max_step_tokens=8192))
    boxes = []
    for number in range(sessions):
        session = _session(number, target.memory.place("t", 0, {}))
        machine.add(session, 0.0)
        boxes.append(session.attach(32))
        if not drafts:
            session.listen()
    spent, rows, now = Counter[str](), 0, 0.0
    for step in range(steps):
        if drafts and step >= WARM_STEPS:
            with _timed(spent, "submit"):
                for session in machine.sessions.values():
                    session.submit(Draft(step, DraftBlock(len(session.sequence), DRAFT)), now)
        with _timed(spent, "begin"):
            work = machine.begin(now)
        now += STEP_S
        if not isinstance(work, Work):
            continue
        with _timed(spent, "step"):
            outcome = target.step(work.items)
        with _timed(spent, "end"):
            machine.end(work, outcome, now, STEP_S)
        with _timed(spent, "drain"):
            for box in boxes:
                box.drain()
        rows += len(work.items)
    return {part: spent[part] / rows * 1e6 for part in PARTS}


def _session(number: int, place: SequenceMemory) -> Session:
    ends = EndRules(frozenset({VOCABULARY - 1}), frozenset(), len(PROMPT) + TOKENS)
    sources = DraftSources(DraftLimits(VOCABULARY, 8), DeviceDrafts(None))
    terms = Terms(SamplingParams(temperature=0), b"", Match())
    return Session(number, "t", Sequence(PROMPT, len(PROMPT), ends, place), terms, sources)


@contextmanager
def _timed(spent: Counter[str], part: str) -> Iterator[None]:
    start = time.process_time()
    yield
    spent[part] += time.process_time() - start  # type: ignore[assignment]


def _cells(quick: bool) -> Iterator[tuple[str, ...]]:
    for policy in ("goodput", "fcfs"):
        for drafts, sizes in ((False, (16, 64, 256, 1000)), (True, (64, 256))):
            for sessions in (16,) if quick else sizes:
                steps = 12 if quick else 150 if sessions > 200 else 400
                spent = asyncio.run(processor_us(policy, sessions, drafts, steps)).values()
                name = "rounds of 4" if drafts else "plain tokens"
                yield policy, name, str(sessions), *(f"{us:.1f}" for us in (*spent, sum(spent)))


def main(argv: list[str] | None = None) -> int:
    parser = parser_of("core_us", __doc__)
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that it works")
    quick = parser.parse_args(argv).quick

    def measure() -> int:
        head = ("policy", "work", "sessions", *(f"{part}, us" for part in PARTS), "all, us")
        print("\n".join(table(head, list(_cells(quick)))))
        return 0

    return exit_code(measure)


if __name__ == "__main__":
    sys.exit(main())
