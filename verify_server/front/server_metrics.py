"""The server's metrics: counts of the loop and the session manager, under the names of docs/operations.md."""

from __future__ import annotations

from opensled.metrics.answer_counts import answer_metrics
from opensled.metrics.registry import Labels, Metric, build_metric, draft_metrics, model_metric
from verify_server.admission.session_manager import SessionManager
from verify_server.round.loop import VerifyLoop
from verify_server.round.session import Session

# Why a session is not in the current step; docs/operations.md explains each.
REASONS = ("device", "step", "budget", "kv", "reader", "absent")


def metrics(manager: SessionManager) -> list[Metric]:
    """All metrics of a server that computes its target."""
    loop = manager.loop
    engine = Metric(
        "engine_info",
        "1 for the way in which the target is computed.",
        lambda: {loop.machine.target.facts.way: 1},
        "way",
    )
    own = [*_step_metrics(loop), *_drafting_metrics(loop), *_kv_metrics(loop), *_image_metrics(manager)]
    return [*device_metrics(manager), engine, *own]


def device_metrics(manager: SessionManager) -> list[Metric]:
    """Metrics of devices, their drafts and answers, at any engine."""
    drafts, model = manager.loop.machine.stats.drafts, model_metric(lambda: [manager.model_id])
    answers = answer_metrics(manager.stats.answers.now)
    return [model, build_metric(), *draft_metrics(drafts), *_session_metrics(manager), *answers]


def _step_metrics(loop: VerifyLoop) -> list[Metric]:
    stats = loop.machine.stats
    return [
        Metric("steps_total", "Forward passes of the target.", lambda: stats.steps),
        Metric("step_sessions", "Sessions served by one step.", lambda: stats.batches),
        Metric("step_tokens", "Positions computed by one step.", lambda: stats.work),
        Metric("step_seconds", "Duration of a step: forward pass, acceptance.", lambda: stats.seconds),
        Metric(
            "step_prediction_error_ratio",
            "Median error of the predicted durations of the latest steps, as a share of the real ones.",
            lambda: loop.machine.costs.error,
        ),
        Metric("stale_drafts_total", "Drafts that came too late to be computed.", lambda: stats.stale),
        Metric("draft_tokens", "Tokens of one draft.", lambda: stats.lengths),
        Metric(
            "draft_hints_total",
            "Verdicts that left with a hint, by the longest useful next draft that it names.",
            lambda: {str(hint): count for hint, count in sorted(dict(stats.hints).items())},
            "tokens",
        ),
        Metric(
            "positions_computed_total",
            "Positions the target computed: prompts, drafts, and what had to be computed again.",
            lambda: stats.positions,
        ),
        Metric("draft_rests", "Why open sequences have hint 0.", lambda: _rests(loop), "cause,figure"),
        Metric("tokens_committed_total", "Tokens committed.", lambda: stats.tokens),
        Metric(
            "tokens_loose_total",
            "Of them, draft tokens that a loose rule let stand; by no other rule there are any.",
            lambda: stats.loose,
        ),
        Metric("tokens_unasked_total", "Of them, tokens decoded without a draft.", lambda: stats.unasked),
    ]


def _drafting_metrics(loop: VerifyLoop) -> list[Metric]:
    """Of the drafter beside the target."""
    stats, stage = loop.machine.stats, loop.machine.target.drafting
    return [
        Metric(
            "drafter_info",
            "1 for what drafts.",
            lambda: dict.fromkeys(stage.drafters if stage else ["none"], 1),
            "drafter",
        ),
        Metric("server_drafts_total", "Verified drafts that the server made.", lambda: stats.own.drafts),
        Metric("server_draft_tokens_total", "Tokens verified of them.", lambda: stats.own.tokens),
        Metric("server_accepted_tokens_total", "Tokens of them that stood.", lambda: stats.own.accepted),
        Metric(
            "server_drafting_seconds_total", "Time in which the server drafted.", lambda: stats.drafting_s
        ),
    ]


def _kv_metrics(loop: VerifyLoop) -> list[Metric]:
    stats, memory = loop.machine.stats, loop.machine.target.memory
    return [
        Metric("kv_tokens", "KV memory of the target in tokens, by what it holds.", memory.states, "state"),
        Metric("kv_evicted_tokens_total", "Reusable tokens that lost their KV.", lambda: memory.evicted),
        Metric(
            "prefix_cache_hits_total",
            "Positions taken over from other sequences instead of computed.",
            lambda: memory.hits,
        ),
        Metric(
            "preemptions_total",
            "Times that a sequence lost its KV to another one, to be computed again.",
            lambda: stats.preempted,
        ),
    ]


def _image_metrics(manager: SessionManager) -> list[Metric]:
    images = manager.images
    return [
        Metric(
            "images_seen_total",
            "Pictures that the target looked at; those that it knew are not among them.",
            lambda: images.seen_total if images else 0,
        ),
        Metric(
            "image_bytes",
            "Memory of what the target sees in pictures: kept, or of open sequences.",
            lambda: images.held if images else 0,
        ),
    ]


def _session_metrics(manager: SessionManager) -> list[Metric]:
    loop, stats = manager.loop, manager.stats
    failures = loop.machine.stats.failures
    return [
        Metric("failures_total", "Open sequences that ended by an error.", lambda: failures, "code"),
        Metric("sessions", "Unfinished sequences, by reader.", lambda: _sessions(loop), "reader"),
        Metric(
            "sessions_waiting",
            "Unfinished sequences that are not in the current step, by what they wait for.",
            lambda: waiting(loop),
            "reason",
        ),
        Metric(
            "sessions_opened_total",
            "Sequences opened: new, or resumed by a reader that came back.",
            lambda: stats.opened,
            "how",
        ),
        Metric("session_places", "Most sequences at the same time.", lambda: manager.limits.max_sessions),
        Metric("requests_refused_total", "Requests refused before any work.", lambda: stats.refused, "code"),
        Metric(
            "refusal_seconds",
            "From the first message of a stream to the refusal that has left.",
            lambda: stats.refusals,
        ),
        Metric(
            "kept_texts_total",
            "Texts of tenants with keep=1, by what became of them.",
            lambda: manager.keeper.counts if manager.keeper else {},
            "outcome",
        ),
        Metric("client_limits_total", "Times that a client met a limit.", lambda: stats.limited, "limit"),
        Metric("draining", "1 while the server takes no new sequences.", lambda: float(manager.draining)),
    ]


def _sessions(loop: VerifyLoop) -> dict[str, int]:
    readers = [session.has_reader for session in list(loop.machine.sessions.values())]
    return {"live": sum(readers), "absent": len(readers) - sum(readers)}


def _rests(loop: VerifyLoop) -> dict[Labels, float]:
    turns = [session.sources.device.turn for session in list(loop.machine.sessions.values())]
    told = [turn.why._asdict() for turn in turns if turn.hint == 0 and turn.why]
    return {(why["cause"], figure): why[figure] for why in told for figure in why if figure != "cause"}


def waiting(loop: VerifyLoop) -> dict[str, int]:
    """How many sessions wait for each of REASONS."""
    found = dict.fromkeys(REASONS, 0)
    for session in list(loop.machine.sessions.values()):
        if not session.in_step:
            found[_reason(session, loop)] += 1
    return found


def _reason(session: Session, loop: VerifyLoop) -> str:
    """What a session waits for that is not in the step."""
    offer = session.sources.device.offer  # read once: the loop runs in another thread
    if not session.has_reader:
        return "absent"
    if session.id in loop.machine.left_out:
        return "kv"
    if offer is None and not session.server_drives:
        return "device"
    if offer is None and session.outbox.full:
        return "reader"
    since = offer.since if offer is not None else session.timing.waiting_since
    return "step" if since > loop.machine.planned_at else "budget"
