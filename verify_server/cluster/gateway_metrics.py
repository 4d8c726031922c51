"""A gateway's metrics: its placements, and the last heartbeats of the replicas."""

from __future__ import annotations

from collections.abc import Callable

from opensled.metrics.answer_counts import AnswerCounts, Counted, answer_metrics
from opensled.metrics.registry import Metric, build_metric, model_metric
from scheduler.cluster.placement import Directory, Heartbeat
from verify_server.cluster.gateway import Gateway


class ClusterAnswers:
    """Those of the gateway's own API, and those that replicas gave to devices, as of their last heartbeats."""

    def __init__(self, own: AnswerCounts, directory: Directory) -> None:
        self._own, self._directory = own, directory
        self._last: dict[str, Counted] = {}  # by replica
        self._gone = AnswerCounts()  # of replicas that are no more: counters never fall

    def now(self) -> Counted:
        """All of them together."""
        beats = {beat.replica: beat.answers for beat in self._directory.replicas()}
        for replica in self._last.keys() - beats.keys():
            self._gone.include(self._last.pop(replica))
        self._last |= beats
        return AnswerCounts(self._own.now(), self._gone.now(), *self._last.values()).now()


def gateway_metrics(gateway: Gateway, directory: Directory) -> list[Metric]:
    """All metrics of a gateway."""
    stats = gateway.stats
    return [
        model_metric(lambda: [beat.model_id for beat in directory.replicas()]),
        Metric(
            "placements_total", "Sequences, by the replica they went to.", lambda: stats.placed, "replica"
        ),
        Metric(
            "placements_resumed_total",
            "Of them, sequences that had begun before: their replica was lost, drained, or out of reach.",
            lambda: stats.resumed,
        ),
        Metric("requests_refused_total", "Requests that reached no replica.", lambda: stats.refused, "code"),
        Metric("client_limits_total", "Times that a client met a limit.", lambda: stats.limited, "limit"),
        *answer_metrics(ClusterAnswers(stats.answers, directory).now),
        build_metric(),
        Metric("streams_lost_total", "Streams passed through that their replica ended.", lambda: stats.lost),
        *_replicas(directory),
    ]


def _replicas(directory: Directory) -> list[Metric]:
    def of_each(name: str, help: str, value: Callable[[Heartbeat], float]) -> Metric:
        return Metric(
            name, help, lambda: {beat.replica: value(beat) for beat in directory.replicas()}, "replica"
        )

    return [
        of_each("replica_sessions", "Sequences with a reader.", lambda beat: beat.sessions),
        of_each("replica_places", "Most sequences at the same time.", lambda beat: beat.places),
        of_each(
            "replica_kv_tokens_free",
            "Tokens of KV memory that new sequences can get.",
            lambda beat: beat.free_tokens,
        ),
        of_each("replica_step_seconds", "Expected duration of the next step.", lambda beat: beat.step_s),
        of_each(
            "replica_queue_seconds",
            "Expected wait for the first token of a new sequence.",
            lambda beat: beat.queue_s,
        ),
        of_each("replica_draining", "1 while it takes no new sequences.", lambda beat: float(beat.draining)),
    ]
