"""An emulated accelerator: real logits of the tiny target, in the time that a hardware profile says.

    opensled serve --engine lab.testbed.emulation.emulated_accelerator:load

A step ends when dilation x `StepLaw.step_s` seconds have passed since its forward pass began. Sampling is part of that
time, because the overhead of a profile includes it. The loop's work between two steps adds to it, as on a real server.
A step is late if its real work takes longer. At the end one line `emulation: {...}` on standard output counts the late
steps: a run with more than a few of them measures this machine and not the profile.
"""

import atexit
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from hw_profiles.step_cost import StepCost
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.testbed.fleet import Fleet, Server, part
from opensled.core.errors import NonFiniteLogits, UsageError
from verify_server.engine.base import SampleRequest, Scores, Segment, TargetEngine
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel

# Environment variable: keys of `Server`, "dilation", and "drafts" where the server has a draft of its own, as JSON
VARIABLE = "LAB_EMULATION"
TOTALS = "emulation: "  # what the line of the totals begins with


def environment(server: Server, dilation: float, drafts: str = "") -> dict[str, str]:
    """What `opensled serve` with this engine needs in its environment to stand for `server`.

    `drafts`: file with what the draft beside the target proposes (lab/testbed/traces.py); "" = there is none.
    """
    return {VARIABLE: json.dumps({**asdict(server), "dilation": dilation, "drafts": drafts})}


def load(config: ServeConfig) -> ServedModel:
    """The real target that `config` names, slowed down as the environment says."""
    server, dilation, _ = settings()
    law = StepLaw.of(server)
    target: ServedModel = ENGINES.get(server.engine)(config)
    engine = EmulatedEngine(target.engine, law, dilation)
    atexit.register(lambda: print(TOTALS + json.dumps(asdict(engine.totals)), flush=True))
    return replace(target, engine=engine, stated_cost=DilatedCost(law.cost, dilation))


def settings() -> tuple[Server, float, str]:
    """The server that is stood for, real seconds for each emulated one, and the file of its drafts; raises UsageError
    for an environment that does not say so."""
    text = os.environ.get(VARIABLE, "")
    try:
        table = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"{VARIABLE}: {error}") from error
    is_table = isinstance(table, dict)
    drafts = str(table.pop("drafts", "")) if is_table else ""
    stretched = {"dilation": table.pop("dilation")} if is_table and "dilation" in table else {}
    server, dilation = part(Server, table, VARIABLE), part(Fleet, stretched, VARIABLE).dilation
    if not server.accelerator:
        raise UsageError(
            f'the emulated accelerator is told what it stands for by {VARIABLE}, such as {{"accelerator": "a100-80"}}'
        )
    if not dilation > 0:
        raise UsageError(f"{VARIABLE}: dilation must be above 0")
    return server, dilation, drafts


@dataclass(frozen=True)
class DilatedCost:
    """What a server knows of such an accelerator from its profile, in real seconds."""

    cost: StepCost
    dilation: float = 1.0

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        return self.dilation * self.cost.verify_s(tokens, contexts, sessions)


@dataclass
class Totals:
    """Real seconds of all steps so far."""

    steps: int = 0
    due_s: float = 0.0  # what they were to take: dilation x the law
    work_s: float = 0.0  # what the real forward passes and samplings took
    late_steps: int = 0  # whose real work took longer than that
    late_s: float = 0.0  # by how much, summed
    overshot_s: float = 0.0  # how much longer than due the other steps lasted, summed: the timer's own error


class EmulatedEngine(TargetEngine):
    """`TargetEngine` around another one."""

    def __init__(self, inner: TargetEngine, law: StepLaw, dilation: float = 1.0) -> None:
        self._inner, self._law, self._dilation = inner, law, dilation
        self.info = inner.info
        self.totals = Totals()

    def forward(self, segments: Sequence[Segment]) -> Scores:
        """See `TargetEngine`. Returns early if there are rows to sample; their sampling then takes the rest."""
        started = time.perf_counter()
        pieces = [StepPiece.of(segment) for segment in segments]
        step = Step(started, self._dilation * self._law.step_s(pieces), self.totals)
        scores = self._inner.forward(segments)
        wanted = [segment.rows for segment in segments if segment.rows]
        if not wanted:
            step.end()
        last = sum(wanted) - wanted[-1] if wanted else 0
        return cast(Scores, StretchedScores(scores, step, last))

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        self._inner.compact(blocks, moves)

    def forget(self, blocks: Sequence[int]) -> None:
        self._inner.forget(blocks)


@dataclass
class Step:
    """One step under way."""

    started: float  # on the clock of time.perf_counter
    due_s: float
    totals: Totals
    is_over: bool = False

    def end(self) -> None:
        """Sleep for what is left of it. A session with a draft tree may sample once more after that."""
        if self.is_over:
            return
        work_s = time.perf_counter() - self.started
        left_s = self.due_s - work_s
        if left_s > 0:
            time.sleep(left_s)
            self.totals.overshot_s += time.perf_counter() - self.started - self.due_s
        else:
            self.totals.late_steps += 1
            self.totals.late_s -= left_s
        self.totals.work_s += work_s
        self.totals.due_s += self.due_s
        self.totals.steps += 1
        self.is_over = True


class StretchedScores:
    """`Scores` of a step that is over when its tokens are sampled, in one call for all sessions.

    Where all drafts are recovered from residuals there is no such call: the last session's residual ends the step.
    """

    def __init__(self, inner: Scores, step: Step, last: int) -> None:
        """`last`: first row of the session that is decided last."""
        self._inner, self._step, self._last = inner, step, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sample(self, requests: Sequence[SampleRequest]) -> list[list[int] | NonFiniteLogits]:
        try:
            return self._inner.sample(requests)
        finally:
            self._step.end()

    def sample_residual(self, row: int, *args: Any) -> int:
        try:
            return self._inner.sample_residual(row, *args)
        finally:
            if row >= self._last:
                self._step.end()
