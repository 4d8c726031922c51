"""What a device counts over all its answers; device_metrics.py shows it to a scraper."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edge_client.round.commits import Commit
from hw_profiles.fading import FadingRatio, RunningMedian
from opensled.core.answer import UNVERIFIED, Stats
from opensled.core.errors import OpenSledError
from opensled.metrics.answer_counts import CANCELLED, ENDS
from opensled.metrics.registry import SECONDS, DraftCounts, Histogram

log = logging.getLogger(__name__)

RECENT = 512.0  # tokens after which half of what an answer shows of the rate is forgotten; chosen
OPENINGS = 9  # latest sequences whose opening counts; odd, so that the median is a value


@dataclass
class Telemetry:
    """The counts of one device."""

    drafts: DraftCounts = field(default_factory=DraftCounts)
    tokens: int = 0  # of answers
    loose: int = 0  # of `tokens`, drafted ones that are not the target's own
    wasted: int = 0  # drafted ahead of verdicts, and in vain
    unasked: int = 0  # of `tokens`, decoded by the server without a draft
    local: int = 0  # of `tokens`, written by the draft model or a relay's alone, with the target out of reach
    reopened: int = 0  # lost streams that were found again
    # by finish reason; each begins at 0, so that rates are right from the first answer on
    answers: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(ENDS, 0)))
    errors: Counter[str] = field(default_factory=Counter)  # by code
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    per_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    # Tokens per second of whole answers behind their first token: of those mostly from drafts, and of those without
    rate_drafted: FadingRatio = field(default_factory=lambda: FadingRatio(RECENT))
    rate_plain: FadingRatio = field(default_factory=lambda: FadingRatio(RECENT))
    opening_s: float | None = None  # median time to open a sequence; None = none was opened
    _openings: RunningMedian = field(default_factory=lambda: RunningMedian(OPENINGS))

    def forget_rates(self) -> None:
        """The target is another one: its speed is compared with no other target's."""
        self.rate_drafted, self.rate_plain = FadingRatio(RECENT), FadingRatio(RECENT)

    def add_opening(self, seconds: float) -> None:
        """A sequence was opened in `seconds`: a round trip of the link, and no step of the target."""
        self.opening_s = self._openings.add(seconds)

    @contextmanager
    def answer(self) -> Iterator[float]:
        """One answer under way: counts errors and cancellation; yields its start on the monotonic clock."""
        try:
            yield time.monotonic()
        except Exception as error:
            code = error.code if isinstance(error, OpenSledError) else OpenSledError.code
            self.errors[code] += 1
            log.info("an answer ends by an error", extra={"code": code})
            raise
        except BaseException:  # its task was cancelled, or its generator closed
            self.answers[CANCELLED] += 1
            raise

    def commit(self, stats: Stats, commit: Commit, tokens: int, seconds: float) -> None:
        """Count a commit of which the first `tokens` tokens belong to the answer, here and in the answer's `stats`.

        `seconds`: since the reader asked.
        """
        if tokens and not stats.completion_tokens:
            stats.first_token = seconds
            self.first_token.add(seconds)
        stats.completion_tokens += tokens
        self.tokens += tokens
        loose = sum(index < tokens for index in commit.loose)
        stats.loose += loose
        self.loose += loose
        alone = sum(origin in UNVERIFIED for origin in commit.origins[:tokens])
        stats.local_tokens += alone
        self.local += alone
        accepted, standing, of_rounds = commit.count_drafted(tokens)
        if commit.drafted:
            stats.rounds += 1
            stats.drafted += commit.drafted
            self.drafts.add(commit.drafted, accepted)
        stats.accepted += standing
        stats.round_tokens += of_rounds
        unasked = tokens - of_rounds - alone
        stats.server_decoded += unasked
        self.unasked += unasked

    def finish(self, stats: Stats, reason: str) -> None:
        """An answer is complete. Time per output token is defined as in vLLM: without the first token."""
        tokens, seconds = stats.completion_tokens, stats.seconds
        self.answers[reason] += 1
        log.info(
            "an answer is complete",
            extra={"finish_reason": reason, "tokens": tokens, "seconds": round(seconds, 3)},
        )
        if tokens > 1:
            self.per_token.add((seconds - stats.first_token) / (tokens - 1))
            rate = self._rate_of(stats)
            if rate is not None:
                rate.add(tokens - 1, seconds - stats.first_token, age=tokens - 1)

    def _rate_of(self, stats: Stats) -> FadingRatio | None:
        """The rate that an answer counts for. One with a few drafts among many tokens of the server is neither with
        drafts nor without; nor is one that no target has verified."""
        if stats.local_tokens:
            return None
        if 2 * stats.round_tokens >= stats.completion_tokens:
            return self.rate_drafted
        return None if stats.rounds else self.rate_plain
