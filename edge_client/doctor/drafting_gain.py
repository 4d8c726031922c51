"""What drafting brings here, in words: measured on short answers, never guessed. `opensled plan` predicts."""

from __future__ import annotations

from edge_client.device.config import DoctorConfig
from edge_client.doctor.finding import Finding, ok, warn
from edge_client.doctor.server_checks import NO_DRAFTS, ServerReport
from edge_client.doctor.server_speed import own_decoding
from edge_client.doctor.trial import ENOUGH, GainReport, Prediction, measure
from hw_profiles.speculation import WORTH
from opensled.core.printable import digits

RESTS = "hint"  # the --stop that drafts as the server says, which asks for no drafts where they do not pay


async def check_gain(
    asked: DoctorConfig, config: DoctorConfig, server: ServerReport, report: GainReport
) -> None:
    """Fill `report` where a server can be asked and the device drafts.

    `asked`: as the user said; `config`: with the drafter that belongs to the target.
    """
    if not server.usable or config.drafter == NO_DRAFTS:
        return
    measured = await measure(asked)
    if isinstance(measured, Prediction):
        report.prediction = measured
        report.findings += report_gain(config, measured)
    else:
        why = f"drafting was not measured: {measured}"
        report.findings.append(warn("short answers", why, "ask for one: opensled generate Hello"))
        report.findings += [own_decoding(server.decode_s)] if server.decode_s else []


def report_gain(config: DoctorConfig, measured: Prediction) -> list[Finding]:
    """What was measured, in words; no gain from too few drafts."""
    rate = f"this device gives a user about {digits(measured.rate)} tokens/s"
    acceptance = _report_acceptance(measured)
    if not measured.tells:
        told = f"{rate}; whether drafts help cannot be told from {measured.drafted} draft tokens (at least {ENOUGH})"
        return [acceptance, ok("drafting", f"{told}; {measured.why}")]
    rates = f"{rate}, without drafts {digits(measured.own_rate)} ({digits(measured.times)}x)"
    kinds = ", ".join(f"{kind} {digits(rate)}" for kind, rate in measured.by_kind.items())
    if measured.times >= WORTH:
        return [acceptance, ok("drafting", f"{rates}; {kinds}")]
    effect = "slow this device down" if measured.times < 1 / WORTH else "bring nothing"
    return [acceptance, _slower(config, f"{rates}; drafts {effect} here")]


def _report_acceptance(measured: Prediction) -> Finding:
    where = f"measured just now on {measured.answers} short answers; {measured.drafter}"
    if not measured.rounds:
        return ok("acceptance", f"nothing was drafted ({where})")
    share = f"the target accepts {measured.accepted} of {measured.drafted} draft tokens"
    return ok("acceptance", f"{share}, {measured.tokens_per_round:.1f} tokens a round ({where})")


def _slower(config: DoctorConfig, detail: str) -> Finding:
    """A warning only if the policy drafts where drafts do not pay."""
    if config.stop == RESTS:
        return ok("drafting", f"{detail}; the server lets it rest most of the time")
    return warn("drafting", detail, f"--stop {RESTS}, which lets the server decide; or --drafter none")
