"""What a server shows on its page: the figures of `opensled top`, its devices, and its tenants."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from http_api.page.views import conversation
from opensled.cli.top_figures import figures
from opensled.core.errors import NotFound, Unsupported
from opensled.drafting.status import why_at_rest
from opensled.metrics.registry import DraftCounts, Histogram, Histograms, Metric, label_values
from opensled.metrics.scrape import Between, Sample
from scheduler.estimates import DeviceEstimate
from verify_server.admission.session_manager import SessionManager
from verify_server.round.budget import MIN_ACCEPTANCE, DraftRecord
from verify_server.round.session import Session

MAX_ROWS = 500  # devices that are listed: those with sequences first, then the latest ones
Known = tuple[str, str, DraftRecord]  # tenant, name of the device, its record
LONGEST_NAME = 80  # characters of a name that are shown


class GatewayView:
    """The page of a gateway (a `PageView`): its replicas. What devices do, only their replicas know."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def watcher(self) -> Callable[[], dict[str, Any]]:
        """The first look has no rates yet."""
        before = sample(self._metrics)

        def look() -> dict[str, Any]:
            nonlocal before
            then, before = before, sample(self._metrics)
            return self._look(Between(then, before))

        return look

    def switch(self, tenant: str, device: str, drafting: bool) -> None:
        """A gateway hands out no hints."""
        raise Unsupported("a gateway has no figures of devices; use the page of a single server")

    def _look(self, between: Between) -> dict[str, Any]:
        found = figures("", between)
        return {**found, **conversation(found["model"], ["server"])}


class FleetView(GatewayView):
    """The page of one server."""

    def __init__(self, metrics: Sequence[Metric], manager: SessionManager) -> None:
        super().__init__(metrics)
        self._manager = manager

    def switch(self, tenant: str, device: str, drafting: bool) -> None:
        """From now on the target verifies drafts of this device, or none: its hints are 0 then."""
        record = self._manager.records.known(tenant, device) if device else None
        if record is None:
            raise NotFound(
                f"no device {device[:LONGEST_NAME]!r} of tenant {tenant[:LONGEST_NAME]!r} has drafted here"
            )
        record.drafting = drafting

    def _look(self, between: Between) -> dict[str, Any]:
        manager, stats = self._manager, self._manager.loop.machine.stats
        known = manager.records.latest()
        live = [session for session in manager.remembered if not session.sequence.finish_reason]
        devices, unlisted = _devices(manager, known, live)
        return {
            **super()._look(between),
            "drafts": drafts(stats.drafts),
            "own_drafts": drafts(stats.own),
            "hints_total": dict(sorted(stats.hints.items())),
            "devices": devices,
            "unlisted": unlisted,
            "tenants": _tenants(manager, known, live),
        }


def sample(metrics: Iterable[Metric]) -> Sample:
    """The values of `metrics` now, as a scraper would read them."""
    values: dict[tuple[str, str], float] = {}
    for metric in metrics:
        reading = metric.read()
        if isinstance(reading, Histogram):
            reading = Histograms({(): reading})
        if isinstance(reading, Histograms):
            for labels, each in reading.found.items():
                values[f"{metric.name}_sum", ",".join(label_values(labels))] = each.sum
                values[f"{metric.name}_count", ",".join(label_values(labels))] = sum(each.counts)
        elif isinstance(reading, Mapping):
            values |= {
                (metric.name, ",".join(label_values(labels))): float(value)
                for labels, value in reading.items()
            }
        else:
            values[metric.name, ""] = float(reading)
    return Sample(time.monotonic(), values)


def drafts(counts: DraftCounts) -> dict[str, Any]:
    """Of all drafts so far: for each position the share that had an accepted token there, and for each length how many
    had so many accepted tokens."""
    reached = [counts.drafts, *counts.accepted_per_position]
    return {
        "drafts": counts.drafts,
        "drafted": counts.tokens,
        "accepted": counts.accepted,
        "by_position": [count / max(1, counts.drafts) for count in reached[1:]],
        "by_length": [here - further for here, further in zip(reached, [*reached[1:], 0])],
    }


def _devices(
    manager: SessionManager, known: Sequence[Known], live: Sequence[Session]
) -> tuple[list[dict[str, Any]], int]:
    """The devices, those with sequences first, and how many more there are."""
    sessions = defaultdict[int, list[Session]](list)
    for session in live:
        sessions[id(session.sources.device.budget.record)].append(session)
    at_work, others = list[Known](), list[Known]()
    for found in known:
        (at_work if id(found[2]) in sessions else others).append(found)
    rows = [
        _device(manager, tenant, device, record, sessions.get(id(record), []))
        for tenant, device, record in [*at_work, *others][:MAX_ROWS]
    ]
    return rows, max(0, len(known) - MAX_ROWS)


def _device(
    manager: SessionManager, tenant: str, device: str, record: DraftRecord, sessions: Sequence[Session]
) -> dict[str, Any]:
    """One row. `device`: "" = clients without drafts."""
    turns = [session.sources.device.turn for session in sessions]
    return {
        "tenant": tenant,
        "device": device,
        "sessions": len(sessions),
        "hint": max((turn.hint for turn in turns if turn.hint is not None), default=None),
        "why": next((why_at_rest(turn.why) for turn in turns if turn.hint == 0), ""),
        "tokens": record.tokens,
        "drafts": record.counts.drafts,
        "drafted": record.counts.tokens,
        "accepted": record.counts.accepted,
        "drafting": record.drafting,
        "ignored": record.is_below(MIN_ACCEPTANCE),
        "age_s": round(manager.loop.clock() - record.opened_at, 1),
        **_estimate(manager.devices.known(tenant, device)),
    }


def _estimate(known: DeviceEstimate | None) -> dict[str, Any]:
    """How fast its drafts come; null: none has come yet. Times in seconds."""
    if known is None or not known.drafts:
        return {"delay_s": None, "jitter_s": None, "draft_s": None}
    return {"delay_s": known.delay_s, "jitter_s": known.jitter_s, "draft_s": known.draft_s}


def _tenants(
    manager: SessionManager, known: Sequence[Known], live: Sequence[Session]
) -> list[dict[str, Any]]:
    """By tenant: sequences, tokens of KV memory that they hold, devices, and tokens committed for these."""
    sessions = Counter(session.tenant for session in live)
    tokens, devices = defaultdict[str, int](int), defaultdict[str, int](int)
    for tenant, device, record in known:
        tokens[tenant] += record.tokens
        devices[tenant] += bool(device)
    memory = manager.loop.machine.target.memory
    return [
        {
            "tenant": tenant,
            "sessions": sessions[tenant],
            "devices": devices[tenant],
            "kv_tokens": memory.count_held(tenant),
            "tokens": tokens[tenant],
        }
        for tenant in sorted(tokens, key=lambda name: (-sessions[name], name))[:MAX_ROWS]
    ]
