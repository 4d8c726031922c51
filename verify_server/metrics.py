"""The server's metrics: what the loop and the door count, under the names of docs/operations.md."""

from __future__ import annotations

from opensled.metrics import Metric, draft_metrics
from verify_server.loop import VerifyLoop
from verify_server.sessions import Door


def metrics(door: Door) -> list[Metric]:
    """Everything a server tells a scraper."""
    return [*draft_metrics(door.loop.stats.drafts), *_loop_metrics(door.loop), *_door_metrics(door)]


def _loop_metrics(loop: VerifyLoop) -> list[Metric]:
    stats, pool = loop.stats, loop.pool
    return [
        Metric("stale_drafts_total", "Drafts that came too late to be computed.", lambda: stats.stale),
        Metric("steps_total", "Forward passes of the target.", lambda: stats.steps),
        Metric("step_sessions", "Sessions served by one step.", lambda: stats.batches),
        Metric("step_seconds", "Duration of a step: forward pass and acceptance.", lambda: stats.seconds),
        Metric(
            "positions_computed_total",
            "Positions the target computed: prompts, drafts, and what had to be computed again.",
            lambda: stats.positions,
        ),
        Metric("tokens_committed_total", "Tokens committed.", lambda: stats.tokens),
        Metric("tokens_unasked_total", "Of them, tokens decoded without a draft.", lambda: stats.unasked),
        Metric(
            "failures_total", "Open sequences that ended by an error.", lambda: stats.failures, label="code"
        ),
        Metric("sessions", "Unfinished sequences, by reader.", lambda: _sessions(loop), label="reader"),
        Metric(
            "kv_blocks",
            "KV blocks of the engine.",
            lambda: {"free": pool.num_free, "used": pool.num_blocks - pool.num_free},
            label="state",
        ),
        Metric("kv_block_tokens", "Tokens that one KV block holds.", lambda: pool.block_size),
    ]


def _door_metrics(door: Door) -> list[Metric]:
    stats = door.stats
    return [
        Metric(
            "sessions_opened_total",
            "Sequences opened: new, or resumed by a reader who came back.",
            lambda: stats.opened,
            label="how",
        ),
        Metric(
            "requests_refused_total",
            "Requests refused before any work was done.",
            lambda: stats.refused,
            label="code",
        ),
        Metric("draining", "1 while the server takes no new sequences.", lambda: float(door.draining)),
    ]


def _sessions(loop: VerifyLoop) -> dict[str, int]:
    readers = [session.has_reader for session in list(loop.sessions.values())]
    return {"live": sum(readers), "absent": len(readers) - sum(readers)}
