"""The figures of `opensled top` for one server or gateway, from two samples of its metrics."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from opensled.core.messages import HintReason
from opensled.drafting.status import why_at_rest
from opensled.metrics.scrape import Between

# As `opensled top --json` prints them: numbers, None without data, tables
Figures = dict[str, Any]


def figures(address: str, between: Between) -> Figures:
    """All of them; rates are per second, shares lie in [0, 1]."""
    # A gateway without replicas has no figure of one.
    of_kind = _gateway if between.after.has("streams_lost_total") else _server
    models = sorted(between.after.by_label("model_info"))
    return {
        "server": address,
        "model": ", ".join(models),
        "seconds": round(between.seconds, 3),
        **of_kind(between),
    }


def _server(between: Between) -> Figures:
    now = between.after
    return {
        "kind": "server",
        "draining": now.get("draining") > 0,
        **_sessions(between),
        **_tokens(between),
        **_steps(between),
        **_kv(between),
        **_refusals(between),
    }


def _sessions(between: Between) -> Figures:
    now = between.after
    return {
        "sessions": now.get("sessions", "live"),
        "absent": now.get("sessions", "absent"),
        "places": now.get("session_places"),
        "opened_per_s": between.rate("sessions_opened_total", "new"),
        "resumed_per_s": between.rate("sessions_opened_total", "resumed"),
        "waiting": now.by_label("sessions_waiting"),
    }


def _tokens(between: Between) -> Figures:
    hints = {
        label: between.count("draft_hints_total", label)
        for label in between.after.by_label("draft_hints_total")
    }
    given = sum(hints.values())
    return {
        "tokens_per_s": between.rate("tokens_committed_total"),
        "unasked": between.ratio("tokens_unasked_total", "tokens_committed_total"),
        "acceptance": between.ratio(
            "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
        ),
        "draft_length": between.mean("draft_tokens"),
        "too_late": between.ratio("stale_drafts_total", "spec_decode_num_drafts_total"),
        "hints": {label: count / given for label, count in hints.items() if count},
        "rests": rests(between.after.by_label("draft_rests")),
    }


def rests(told: Mapping[str, float]) -> list[str]:
    """Why drafts rest just now, in words, of the figures by "cause,figure"."""
    reasons: dict[str, dict[str, Any]] = {}
    for label, value in told.items():
        cause, _, figure = label.partition(",")
        if figure in HintReason._fields[1:] and isfinite(value):
            reasons.setdefault(cause, {})[figure] = int(value) if figure == "tokens" else value
    return [why_at_rest(HintReason(cause, **known)) for cause, known in reasons.items()]


def _steps(between: Between) -> Figures:
    return {
        "steps_per_s": between.rate("steps_total"),
        "step_s": between.mean("step_seconds"),
        "busy": min(1.0, between.rate("step_seconds_sum")),
        "step_sessions": between.mean("step_sessions"),
        "step_tokens": between.mean("step_tokens"),
        "prediction_error": between.after.get("step_prediction_error_ratio"),
    }


def _kv(between: Between) -> Figures:
    kv = between.after.by_label("kv_tokens")
    tokens, cached = sum(kv.values()), kv.get("cached", 0.0)
    return {
        "kv": kv,
        "kv_tokens": tokens,
        "kv_used": 1 - (kv.get("free", 0.0) + cached) / tokens if tokens else None,
        "kv_cached": cached / tokens if tokens else None,
        "kv_evicted_per_s": between.rate("kv_evicted_tokens_total"),
        "preemptions_per_s": between.rate("preemptions_total"),
        "prefix_hits_per_s": between.rate("prefix_cache_hits_total"),
    }


def _refusals(between: Between) -> Figures:
    codes = between.after.by_label("requests_refused_total")
    rates = {code: between.rate("requests_refused_total", code) for code in codes}
    return {
        "refused_per_s": sum(rates.values()),
        "refused": {code: rate for code, rate in rates.items() if rate},
        "failures_per_s": between.total("failures_total") / between.seconds,
    }


def _gateway(between: Between) -> Figures:
    now = between.after
    replicas = {name: _replica(between, name) for name in now.by_label("replica_sessions")}
    return {
        "kind": "gateway",
        "replicas": replicas,
        "sessions": sum(replica["sessions"] for replica in replicas.values()),
        "places": sum(replica["places"] for replica in replicas.values()),
        "placed_per_s": between.total("placements_total") / between.seconds,
        "resumed_per_s": between.rate("placements_resumed_total"),
        "streams_lost_per_s": between.rate("streams_lost_total"),
        **_refusals(between),
    }


def _replica(between: Between, name: str) -> Figures:
    now = between.after
    return {
        "sessions": now.get("replica_sessions", name),
        "places": now.get("replica_places", name),
        "kv_tokens_free": now.get("replica_kv_tokens_free", name),
        "step_s": now.get("replica_step_seconds", name),
        "queue_s": now.get("replica_queue_seconds", name),
        "draining": now.get("replica_draining", name) > 0,
        "placed_per_s": between.rate("placements_total", name),
    }
