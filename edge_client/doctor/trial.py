"""What drafting brings here, measured: short answers of the real target with drafts and without."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edge_client.device.config import DeviceConfig, DoctorConfig
from edge_client.doctor.finding import Finding
from edge_client.doctor.own_process import Steps, start_module, steps_of

TRIAL_SECONDS = 90.0
ENOUGH = 64  # draft tokens that the target verified, and answers' tokens of each kind, that tell anything
COMMON = set(DeviceConfig.__dataclass_fields__)


@dataclass(frozen=True)
class Prediction:
    """What a user of this device gets, in tokens/s after the first token, and what that rests on."""

    rate: float  # as configured
    own_rate: float  # of the server's own decoding
    tokens_per_round: float = 0.0
    rounds: int = 0  # of drafts that were seen
    drafted: int = 0  # tokens of these drafts,
    accepted: int = 0  # and those of them that the target accepted
    answers: int = 0  # with drafts
    drafter: str = ""
    by_kind: dict[str, float] = field(default_factory=dict)  # `rate` by kind of text
    why: str = ""  # how the device drafted at the end, and why

    @property
    def tells(self) -> bool:
        """Whether enough was drafted to say what drafts bring."""
        return self.drafted >= ENOUGH

    @property
    def times(self) -> float:
        return self.rate / self.own_rate

    def as_json(self) -> dict[str, Any]:
        """Rates and shares rounded."""
        by_kind = {kind: round(rate, 3) for kind, rate in self.by_kind.items()}
        shown = {
            name: round(each, 3) if isinstance(each, float) else each for name, each in asdict(self).items()
        }
        acceptance = round(self.accepted / max(1, self.drafted), 3)
        return {**shown, "acceptance": acceptance, "by_kind": by_kind}


@dataclass
class GainReport:
    """The findings on what drafting brings, and the prediction for this server."""

    findings: list[Finding] = field(default_factory=list)
    prediction: Prediction | None = None


async def measure(config: DoctorConfig) -> Prediction | str:
    """The prediction, or why there is none."""
    facts = {name: value for name, value in asdict(config).items() if name in COMMON}
    async with start_module("edge_client.doctor.short_answers") as process:
        steps, complaint = await steps_of(process, facts, TRIAL_SECONDS)
    found = predict(steps)
    if found is None:
        errors = [step["reason"] for step in steps if step["step"] == "error"]
        return str(next(iter(errors), complaint or "the answers ended after a few tokens"))
    return found


def predict(steps: Steps) -> Prediction | None:
    """Of the steps of short_answers.py; None if they hold too few tokens."""
    answers = [step for step in steps if step["step"] == "answer" and step["tokens"]]
    drafting = [answer for answer in answers if answer["drafts"]]
    plain = [answer for answer in answers if not answer["drafts"]]
    if min(_sum(drafting, "tokens"), _sum(plain, "tokens")) < ENOUGH:
        return None
    drafted, rounds, accepted = (int(_sum(drafting, name)) for name in ("drafted", "rounds", "accepted"))
    by_kind = _rates(drafting)
    return Prediction(
        rate=statistics.harmonic_mean([*by_kind.values()]),
        own_rate=statistics.harmonic_mean([*_rates(plain).values()]),
        tokens_per_round=1 + accepted / max(1, rounds),
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        answers=len(drafting),
        by_kind=by_kind,
        **{step["step"]: step["words"] for step in steps if "words" in step},
    )


def _rates(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Tokens/s by kind of text. Their harmonic mean is the rate of a text with as many tokens of each kind."""
    rates = {}
    for kind in dict.fromkeys(answer["kind"] for answer in answers):
        own = [answer for answer in answers if answer["kind"] == kind]
        rates[kind] = _sum(own, "tokens") / max(_sum(own, "seconds"), 1e-9)
    return rates


def _sum(answers: Sequence[dict[str, Any]], name: str) -> float:
    return sum(answer[name] for answer in answers)
