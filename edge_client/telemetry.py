"""What a device counts while it answers, and its metrics under the names of docs/operations.md."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_client.board_metrics import board_metrics
from edge_client.drafting import Drafting
from edge_client.generate import Commit
from edge_client.lengths.status import DraftStatus
from edge_client.remote import RemoteSession
from opensled.errors import OpenSledError
from opensled.metrics import SECONDS, DraftCounts, Histogram, Metric, draft_metrics

if TYPE_CHECKING:  # the device imports this file
    from edge_client.device import Device

log = logging.getLogger(__name__)

CANCELLED = "cancelled"  # as a finish reason: the reader left before the end
ENDS = ("eos", "stop", "length", CANCELLED)


def _seconds() -> Histogram:
    return Histogram(SECONDS)


@dataclass
class Telemetry:
    """The counts of one device, over all its answers."""

    drafts: DraftCounts = field(default_factory=DraftCounts)
    tokens: int = 0  # of answers
    wasted: int = 0  # drafted ahead of verdicts, and in vain
    unasked: int = 0  # of them, decoded by the server without a draft
    local: int = 0  # of them, the draft model's own words while no server could be reached
    reopened: int = 0  # lost streams that were found again
    # by finish reason; from 0 on, so that rates are right from the first one
    answers: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(ENDS, 0)))
    errors: Counter[str] = field(default_factory=Counter)  # by code
    first_token: Histogram = field(default_factory=_seconds)
    per_token: Histogram = field(default_factory=_seconds)

    @contextmanager
    def answer(self) -> Iterator[AnswerMetrics]:
        """The account of one answer; counts how it ends, whichever way that is."""
        account = AnswerMetrics(self)
        try:
            yield account
        except BaseException as error:
            if not account.finished:  # closing the generator after its last chunk is no end of its own
                self._failed(error)
            raise
        finally:
            self.reopened += account.session.reopened if account.session else 0
            self.wasted += account.drafter.wasted if account.drafter else 0

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, Exception):  # cancelled, or its generator closed
            self.answers[CANCELLED] += 1
            return
        code = error.code if isinstance(error, OpenSledError) else OpenSledError.code
        self.errors[code] += 1
        log.info("an answer ends by an error", extra={"code": code})


class AnswerMetrics:
    """One answer under way. Seconds count from here to the token, as its reader waits for it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.started = time.monotonic()
        self.finished = False
        self.session: RemoteSession | None = None  # once a drafter is found for it
        self.drafter: Drafting | None = None  # once the sequence is open
        self._telemetry = telemetry
        self._tokens = 0
        self._first = 0.0  # seconds to the first token

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def commit(self, commit: Commit, tokens: int) -> None:
        """A commit of which the first `tokens` tokens belong to the answer."""
        total = self._telemetry
        if tokens and not self._tokens:
            self._first = self.seconds
            total.first_token.add(self._first)
        self._tokens += tokens
        total.tokens += tokens
        if commit.drafted:
            total.drafts.add(commit.drafted, min(commit.accepted, tokens))
        elif "local" in commit.origins:
            total.local += tokens
        else:
            total.unasked += tokens

    def finish(self, reason: str) -> None:
        """The answer is complete; time per output token is vLLM's: without the first one."""
        self.finished = True
        self._telemetry.answers[reason] += 1
        log.info(
            "an answer is complete",
            extra={"finish_reason": reason, "tokens": self._tokens, "seconds": round(self.seconds, 3)},
        )
        if self._tokens > 1:
            self._telemetry.per_token.add((self.seconds - self._first) / (self._tokens - 1))


def metrics(device: Device) -> list[Metric]:
    """Everything a device tells a scraper."""
    counts = device.telemetry

    def status() -> DraftStatus:
        return device.status

    return [
        *draft_metrics(counts.drafts),
        Metric(
            "draft_tokens_wasted_total",
            "Tokens drafted ahead of verdicts, and in vain.",
            lambda: counts.wasted,
        ),
        Metric("draft_length", "Tokens of a block, as settled on; 0 = none pays.", lambda: status().length),
        Metric(
            "draft_rate_expected",
            "Tokens/s expected with drafts; 0 = not known.",
            lambda: status().expected_rate or 0,
        ),
        Metric(
            "server_rate_heard",
            "Tokens/s of the server's own decoding; 0 = not known.",
            lambda: status().server_rate or 0,
        ),
        Metric("tokens_committed_total", "Tokens of answers.", lambda: counts.tokens),
        Metric("tokens_unasked_total", "Of them, decoded without a draft.", lambda: counts.unasked),
        Metric("tokens_local_total", "Of them, the draft model's own words.", lambda: counts.local),
        Metric("answers_total", "Answers by their end.", lambda: counts.answers, label="finish_reason"),
        Metric("errors_total", "Answers that ended by an error.", lambda: counts.errors, label="code"),
        Metric(
            "time_to_first_token_seconds", "From the request to its first token.", lambda: counts.first_token
        ),
        Metric(
            "request_time_per_output_token_seconds",
            "Mean time per token of an answer after its first token.",
            lambda: counts.per_token,
        ),
        Metric(
            "streams_reopened_total",
            "Streams that were lost, or led elsewhere, and found again.",
            lambda: counts.reopened,
        ),
        Metric("drafters_busy", "Drafters at work.", lambda: device.drafters_busy),
        Metric("drafters", "Drafters that may work at the same time.", lambda: device.parallel),
        *board_metrics(),
    ]
