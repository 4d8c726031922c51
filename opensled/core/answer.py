"""Requests and answers: tasks, chunks of text, and the statistics at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from opensled.core.images import Image
from opensled.core.messages import (
    Guide,
    Prefill,
    Prompt,
    PromptToken,
    SamplingParams,
    TokenLogprobs,
    is_chat,
)

# Where a token comes from: a draft that was accepted, the target in place of a draft token (recovered) or after a whole
# accepted draft (bonus), the server without a draft; or, without verification, the draft model alone (local) or a
# relay's model alone (relay). Loose: a draft token that a loose rule let stand, where the target's own is another one.
Origin = Literal["accepted", "loose", "recovered", "bonus", "server", "local", "relay"]
UNVERIFIED: tuple[Origin, ...] = ("local", "relay")
LOCAL_ONLY = "local-only"  # the mode in which there are any, and in place of a rule's name then
WARNINGS: dict[Origin, str] = {
    "local": "the server is away: this device's small model answers, and nothing verifies what follows",
    "relay": "the relay cannot reach the target: its own model writes what follows, and nothing verifies it",
}


def first_unverified(origins: Sequence[Origin]) -> Origin | None:
    """Who wrote the first of these tokens that no target has confirmed; None = all are confirmed."""
    return next((origin for origin in origins if origin in UNVERIFIED), None)


@dataclass(frozen=True)
class Task:
    """A prompt and how to answer it."""

    prompt: Prompt
    params: SamplingParams
    stop: tuple[str, ...] = ()  # strings that end the answer; they are not shown
    top_logprobs: int | None = None  # log-probabilities of the tokens and of so many others; None = none
    guide: Guide | None = None
    pace: float | None = None  # tokens/s the reader needs, 0 = no promise; None = the device's default
    background: bool | None = None  # no reader waits for it; None = the device's default
    alone: bool = False  # the draft model answers by itself, without the target
    drafts: bool = True  # the device drafts for it; without drafts the server decodes it alone
    template_variables: str = ""  # as of `Open`
    prompt_logprobs: int | None = None  # as `top_logprobs`, of the prompt's tokens

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures of the prompt, in order."""
        if not is_chat(self.prompt):
            return ()
        return tuple([placed.image for turn in self.prompt for placed in turn.images])


@dataclass
class Stats:
    """The statistics of one answer. A round is a verdict that answers a non-empty draft."""

    prompt_tokens: int
    completion_tokens: int
    thought_tokens: int = 0  # of those, tokens of thoughts and their tags
    cached_tokens: int = 0  # of the prompt, those whose KV was found in the prefix cache instead of computed
    rounds: int = 0
    drafted: int = 0  # tokens proposed in those rounds
    accepted: int = 0  # of `drafted`, tokens that stand in the answer
    loose: int = 0  # of `accepted`, tokens that are not the target's own
    round_tokens: int = 0  # tokens committed by those rounds: accepted, recovered and bonus
    wasted: int = 0  # tokens drafted ahead of verdicts, and in vain
    server_decoded: int = 0  # tokens the server committed without a draft
    local_tokens: int = 0  # tokens that the draft model, or a relay's, wrote alone, without verification
    first_token: float = 0.0  # seconds from the request to the first token
    seconds: float = 0.0  # from the request to the last token
    rule: str = ""  # acceptance rule with all its options; "" = no server said

    @property
    def tokens_per_round(self) -> float:
        return self.round_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return speed([self])

    def figures(self) -> dict[str, float]:
        """The statistics for people and programs; times and rates rounded."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "loose": self.loose,
            "tokens_per_round": round(self.tokens_per_round, 3),
            "wasted": self.wasted,
            "server_decoded": self.server_decoded,
            "local_tokens": self.local_tokens,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "first_token_seconds": round(self.first_token, 3),
        }


def speed(answers: Sequence[Stats]) -> float:
    """Tokens/s of answers behind their first tokens, the one rate that chat, page and gains go by; 0 = not known."""
    behind = [stats for stats in answers if stats.completion_tokens > 1]
    seconds = sum(stats.seconds - stats.first_token for stats in behind)
    return sum(stats.completion_tokens - 1 for stats in behind) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer; or, without text and tokens, a report: the server is away, reads the prompt, has opened it.

    Text may come later than its tokens: a character is shown once all its bytes are known.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None  # on the last chunk: "eos", "stop" or "length"
    stats: Stats | None = None  # on the last chunk
    origins: tuple[Origin, ...] = ()  # one for each of `token_ids`
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of `token_ids`, when asked for
    waiting: float = 0.0  # seconds since the server was heard, while it is away; 0 = it is not
    prefill: Prefill | None = None  # how far the prompt is read, while that goes on
    prompt: tuple[PromptToken, ...] = ()  # tokens of the prompt that became known, each once, if asked for
    stopped_by: str = ""  # on the last chunk: the stop string that ended the answer, "" = none did
    provisional: str = ""  # what a relay or the draft model takes for what follows; replaces the one before
    coarse_tools: tuple[str, ...] = ()  # on the first chunk, see `Opened`
    thoughts: str = ""  # what is thought, before `text`
    thought_tokens: int = 0  # tokens of thoughts, tags included, of those so far that no chunk has counted
    # Makes the last chunk of an answer that ends behind this one, because who writes it ends; None = it cannot
    cut: Callable[[], Chunk] | None = field(default=None, compare=False, repr=False)

    def finish(self, reason: str, stats: Stats, thoughts: str, text: str) -> Chunk:
        """It as the last chunk, with what was held back of the answer."""
        return replace(
            self,
            text=self.text + text,
            thoughts=self.thoughts + thoughts,
            finish_reason=reason,
            stats=stats,
        )

    @property
    def status(self) -> str:
        """What goes on instead of text, for people; "" = nothing that is worth a word."""
        if self.prefill is not None:
            return f"reading the prompt, {self.prefill.computed:,} of {self.prefill.length:,}"
        return f"waiting for the server, {self.waiting:.0f} s" if self.waiting >= 1 else ""


class PromptTokens:
    """How many tokens of a prompt are known with their log-probabilities: each counts once, however often told."""

    def __init__(self) -> None:
        self.known = 0

    def news(self, prefill: Prefill) -> Prefill | None:
        """`prefill` with the tokens that were not known before; None: some before them are missing."""
        if prefill.tokens and prefill.first > self.known:
            return None
        news = prefill.tokens[self.known - prefill.first :] if prefill.tokens else ()
        news, first = news if prefill.first + len(prefill.tokens) > self.known else (), self.known
        self.known += len(news)
        return prefill._replace(first=first, tokens=news)
