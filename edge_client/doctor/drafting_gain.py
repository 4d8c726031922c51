"""The gain of drafting here: measured on short answers of the real target, with drafts and without, never guessed.

`opensled plan` predicts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edge_client.device.config import DeviceConfig, DoctorConfig
from edge_client.device.known_drafts import HOW_TO_GET_ONE
from edge_client.doctor.finding import Finding, cause_and_remedy, fail, ok, warn
from edge_client.doctor.own_process import Steps, run_module
from hw_profiles.speculation import WORTH
from opensled.core.errors import DraftSourceError
from opensled.core.printable import digits

TRIAL_SECONDS = 90.0
ENOUGH = 64  # draft tokens that the target verified, and answers' tokens of each kind, that tell anything
RESTS = "hint"  # the --stop that drafts as the server says, which asks for no drafts where they do not pay
NOTE = "note: "  # begins a line in which a device says with what it drafts instead


@dataclass(frozen=True)
class Prediction:
    """Speed of a user of this device, in tokens/s after the first token, and its evidence."""

    rate: float  # as configured
    own_rate: float  # of the server's own decoding
    tokens_per_round: float = 0.0
    rounds: int = 0  # of drafts that were seen
    drafted: int = 0  # tokens of these drafts,
    accepted: int = 0  # and those of them that the target accepted
    answers: int = 0  # with drafts
    drafter: str = ""
    vocabulary: str = ""  # how the drafter's relates to the target's
    by_kind: dict[str, float] = field(default_factory=dict)  # `rate` by kind of text
    why: str = ""  # how the device drafted at the end, and why

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


async def check_gain(config: DoctorConfig, findings: list[Finding]) -> Prediction | None:
    """Add what short answers show, which a device with the user's options gives."""
    options = {name: getattr(config, name) for name in DeviceConfig.__dataclass_fields__}
    module = "edge_client.doctor.short_answers"
    steps, _, said = await run_module(module, json.dumps(options), seconds=TRIAL_SECONDS)
    notes = [line.removeprefix(NOTE) for line in said if line.startswith(NOTE)]
    findings += [warn("drafter", *cause_and_remedy(note, HOW_TO_GET_ONE)) for note in notes]
    findings += [_report_server(step) for step in steps if step["step"] == "draft server"]
    measured = predict(steps)
    if measured:
        findings += report_gain(config, measured)
        return measured
    errors = [step["reason"] for step in steps if step["step"] == "error"]
    why = next(iter(errors + said[-1:]), "the answers ended after a few tokens")
    findings.append(
        warn("short answers", f"drafting was not measured: {why}", "ask for one: opensled generate Hello")
    )
    return None


def _report_server(step: dict[str, Any]) -> Finding:
    """A draft server that answers may draft nothing all the same."""
    if step["rate"]:
        return ok("draft speed", f"{digits(step['rate'])} tokens/s")
    why = step["note"] or "it has nothing to say after a short text"
    return fail("draft speed", why, "see the log of the draft server", DraftSourceError)


def predict(steps: Steps) -> Prediction | None:
    """The prediction from the steps of short_answers.py; None if they hold too few tokens."""
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


def report_gain(config: DoctorConfig, measured: Prediction) -> list[Finding]:
    """What was measured, in words; no gain from too few drafts."""
    findings = [ok("vocabulary", measured.vocabulary)] if measured.vocabulary else []
    return [*findings, _report_acceptance(measured), _report_drafting(config, measured)]


def _report_acceptance(measured: Prediction) -> Finding:
    where = f"measured just now on {measured.answers} short answers; {measured.drafter}"
    if not measured.rounds:
        return ok("acceptance", f"nothing was drafted ({where})")
    share = f"the target accepts {measured.accepted} of {measured.drafted} draft tokens"
    return ok("acceptance", f"{share}, {measured.tokens_per_round:.1f} tokens a round ({where})")


def _report_drafting(config: DoctorConfig, measured: Prediction) -> Finding:
    rate = f"this device gives a user about {digits(measured.rate)} tokens/s"
    if measured.drafted < ENOUGH:
        told = f"{rate}; whether drafts help cannot be told from {measured.drafted} draft tokens (at least {ENOUGH})"
        return ok("drafting", "; ".join(filter(None, [told, measured.why])))  # no why if time was up
    rates = f"{rate}, without drafts {digits(measured.own_rate)} ({digits(measured.times)}x)"
    if measured.times >= WORTH:
        kinds = ", ".join(f"{kind} {digits(rate)}" for kind, rate in measured.by_kind.items())
        return ok("drafting", f"{rates}; {kinds}")
    effect = "slow this device down" if measured.times < 1 / WORTH else "bring nothing"
    if config.stop == RESTS:
        return ok("drafting", f"{rates}; drafts {effect} here; the server lets it rest most of the time")
    fix = f"--stop {RESTS}, which lets the server decide; or --drafter none"
    return warn("drafting", f"{rates}; drafts {effect} here", fix)
