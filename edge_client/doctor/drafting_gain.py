"""What drafting brings here: measured on short answers; without a server, by the law of a round
(hw_profiles/speculation.py) and an assumed acceptance. And where each number comes from."""

from __future__ import annotations

from dataclasses import replace

from edge_client.device.config import DoctorConfig
from edge_client.doctor.draft import DraftReport, drafter_to_probe
from edge_client.doctor.finding import Finding, ok, warn
from edge_client.doctor.machine import model_bytes
from edge_client.doctor.server_checks import NO_DRAFTS, ServerReport
from edge_client.doctor.server_speed import own_decoding
from edge_client.doctor.trial import GainReport, Prediction, measure
from hw_profiles import catalog
from hw_profiles.calibration import size_of
from hw_profiles.detect import detect
from hw_profiles.speculation import LONGEST, STEPS, WORTH, Gain, RoundCosts
from hw_profiles.step_cost import TargetCost
from hw_profiles.sysfs import read_board
from opensled.core.printable import digits
from opensled.net.address import is_local

ACCEPTANCE, LUCKLESS, LUCKY = 0.7, 0.5, 0.85  # assumed; drafts of the target's own family reach 0.5 to 0.9
# Bytes of the smallest draft model that the 8B targets below can have; 0.5B at 4 bits are 300 MB, and smaller ones than
# this are drafts of other, smaller targets. Chosen.
SMALLEST = 100_000_000
SIZE = "0.5b"  # the draft model that a board is judged by where the configured one is not among its figures
# Servers to compare with where none can be asked: (target, accelerator, what it is)
EXAMPLES = (
    ("dense-8b", "a100-80", "a fast server"),
    ("dense-8b", "agx-orin", "a hub in the house"),
)
RESTS = "hint"  # the --stop that drafts as the server says, which asks for no drafts where they do not pay
SHARED = ", but one at a time: the server shares this machine, and each slows the other down"
USERS, CONTEXT = 8, 1024  # of such a server: sequences at a time, and positions of each


Sourced = tuple[float, str]  # seconds, and where the number comes from


async def check_gain(
    asked: DoctorConfig, config: DoctorConfig, server: ServerReport, draft: DraftReport, report: GainReport
) -> None:
    """Fill `report`: measured with the server where there is one, else by the law.

    `asked`: as the user said; `config`: with the drafter that belongs to the target.
    """
    measured = await measure(asked) if server.usable and config.drafter != NO_DRAFTS else None
    if isinstance(measured, Prediction):
        report.prediction = measured
        report.findings += report_gain(config, measured)
    else:
        report.findings += [_untold(measured)] if measured else []
        report.findings += [own_decoding(server.speed)] if server.speed else []
        by_law(config, server, draft, report)


def _untold(why: str) -> Finding:
    return warn("short answers", f"drafting was not measured: {why}", "ask for one: opensled generate Hello")


def report_gain(config: DoctorConfig, measured: Prediction) -> list[Finding]:
    """What was measured, in words."""
    rates = f"{digits(measured.rate)} tokens/s, without drafts {digits(measured.own_rate)} ({digits(measured.times)}x)"
    kinds = ", ".join(f"{kind} {digits(rate)}" for kind, rate in measured.by_kind.items())
    if measured.times >= WORTH:
        return [
            _report_acceptance(measured),
            ok("drafting", f"this device gives a user about {rates}; {kinds}"),
        ]
    told = f"this device gives a user about {rates}; drafting {_effect(measured.times)}"
    return [_report_acceptance(measured), _slower(config, told)]


def _report_acceptance(measured: Prediction) -> Finding:
    where = f"measured just now on {measured.answers} short answers; {measured.drafter}"
    if not measured.rounds:
        return ok("acceptance", f"nothing was drafted ({where})")
    share = f"the target accepts {measured.acceptance:.0%} of {measured.drafted} draft tokens"
    return ok("acceptance", f"{share}, {measured.tokens_per_round:.1f} tokens a round ({where})")


def by_law(config: DoctorConfig, server: ServerReport, draft: DraftReport, report: GainReport) -> None:
    """Fill `report` by the law of a round, with an assumed acceptance.

    Nothing where the device does not draft, where its draft model cannot be used, or where too little is known.
    """
    tiny = bool(draft.seconds) and not server.speed and (model_bytes(config) or SMALLEST) < SMALLEST
    drafting = _drafting(config, DraftReport() if tiny else draft) if draft.usable else None
    if drafting is None:
        report.findings += [_too_small(config)] if tiny else []
        return
    (token_s, token_origin), (rtt_s, rtt_origin) = drafting, _link(config, server)
    report.findings += [ok("draft speed here", token_origin), ok("round trip", rtt_origin)]
    speed = server.speed
    if speed and server.info:
        exchange = RoundCosts(
            token_s, rtt_s, lambda length: speed.step_s(length, rtt_s), speed.decode_s, ACCEPTANCE
        )
        longest = max(1, min(LONGEST, server.info.limits.max_draft))
        origin = _report_assumption("all else was measured" + (SHARED if is_local(config.server) else ""))
        report.findings += [origin, verdict(config, exchange, longest, "this server")]
        report.prediction = _foretold(config, exchange.best(longest))
    else:
        derived = "the servers are judged by their profiles, which are derived and not measured"
        report.findings += [
            _report_assumption(derived),
            *(_example(config, token_s, rtt_s, *each) for each in EXAMPLES),
        ]


def _too_small(config: DoctorConfig) -> Finding:
    size = f"{(model_bytes(config) or 0) / 1e6:,.1f} MB"
    return warn(
        "drafting",
        f"nothing is foretold: no server was asked, and {config.draft_model} ({size}) can draft for no large target",
        "name a server: --server HOST:PORT; or a draft model of a large target's family: --draft-model FILE",
    )


def _foretold(config: DoctorConfig, gain: Gain) -> Prediction:
    rests = config.stop == RESTS and not gain.pays
    return Prediction(gain.own_rate if rests else gain.rate, gain.own_rate, "assumed", ACCEPTANCE)


def _report_assumption(rest: str) -> Finding:
    span = f"in brackets what {LUCKLESS:.0%} and {LUCKY:.0%} would bring"
    return ok("assumed", f"that the target agrees with {ACCEPTANCE:.0%} of draft tokens ({span}); {rest}")


def _drafting(config: DoctorConfig, draft: DraftReport) -> Sourced | None:
    """Seconds per draft token: tried just now, or as published for the board."""
    if draft.seconds:
        return (
            draft.seconds,
            f"{1 / draft.seconds:,.0f} tokens/s (measured just now, {config.draft_url or config.draft_model})",
        )
    profile = detect(config.root).profile
    if not profile or not drafter_to_probe(config.drafter):
        return None
    drafts = catalog.device(profile).drafts
    size = size_of(config.draft_model)
    speed = drafts[size if size in drafts else SIZE].decode_per_s
    detail = f"{speed} tokens/s with a {size if size in drafts else SIZE} draft (published for {profile})"
    slowed = "; slowed down as it is now, less" if read_board(config.root).throttled else ""
    return 1 / speed.typical, detail + slowed


def _link(config: DoctorConfig, server: ServerReport) -> Sourced:
    if server.round_trip is not None:
        return server.round_trip, f"{1000 * server.round_trip:.1f} ms (measured just now)"
    link = catalog.link(config.link)
    return link.rtt_s, f"{1000 * link.rtt_s:g} ms (assumed: {link.id}; another one with --link NAME)"


def _example(
    config: DoctorConfig, token_s: float, rtt_s: float, target: str, accelerator: str, kind: str
) -> Finding:
    """Before a server whose steps follow from its profile."""
    cost = TargetCost(catalog.accelerator(accelerator), catalog.target(target))

    def step_s(length: int) -> float:
        return cost.verify_s(USERS * (length + 1), USERS * CONTEXT)

    exchange = RoundCosts(token_s, rtt_s, lambda length: STEPS * step_s(length), step_s(0), ACCEPTANCE)
    return verdict(config, exchange, LONGEST, f"{kind} ({target} on {accelerator}, {USERS} users)")


def verdict(config: DoctorConfig, exchange: RoundCosts, longest: int, server: str) -> Finding:
    """Whether blocks of up to `longest` draft tokens give the user more than `server` does alone."""
    gain = exchange.best(longest)
    low, high = (
        replace(exchange, acceptance=acceptance).best(longest).times for acceptance in (LUCKLESS, LUCKY)
    )
    own = f"{server} by itself gives a user {digits(gain.own_rate)} tokens/s"
    span = f"({digits(low)}x to {digits(high)}x)"
    if gain.pays:
        times = f"about {digits(gain.times)}x the tokens/s of the server's own decoding"
        return ok("drafting", f"{own}; drafting here gives {times} {span}, best with k = {gain.length}")
    return _slower(config, f"{own}; drafting {_effect(gain.times)}: {digits(gain.times)}x {span}")


def _effect(times: float) -> str:
    return f"would {'slow this device down' if times < 1 / WORTH else 'bring nothing'} here"


def _slower(config: DoctorConfig, detail: str) -> Finding:
    """A warning only if the policy drafts where drafts do not pay."""
    if config.stop == RESTS:
        return ok("drafting", f"{detail}; the server then asks for no drafts, and decodes by itself")
    return warn("drafting", detail, f"--stop {RESTS}, which lets the server decide; or --drafter none")
