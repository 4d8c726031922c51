"""What a device hands to the reader of an answer: chunks of text, and in the end what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from opensled.messages import Guide, Prompt, SamplingParams, TokenLogprobs

# Who wrote a token: a draft that was accepted, the target in its place (recovered) or after a whole accepted draft
# (bonus), or the server without a draft. Last, the draft model alone: words that nobody verified.
Origin = Literal["accepted", "recovered", "bonus", "server", "local"]
ALONE = "no server can be reached: what follows are the draft model's own words, which nobody verified"


@dataclass(frozen=True)
class Task:
    """What a reader wants answered, and how."""

    prompt: Prompt
    params: SamplingParams
    stop: tuple[str, ...] = ()  # strings that end the answer; they are not shown
    top_logprobs: int | None = None  # log-probabilities: of the tokens and so many others; None = no
    guide: Guide | None = None
    pace: float | None = None  # tokens/s the reader needs, 0 = no promise; None = as the device was told
    background: bool | None = None  # nobody watches it grow; None = as the device was told


@dataclass(frozen=True)
class RequestDefaults:
    """What a device asks of its server for each answer, unless the answer's reader asks for something else."""

    pace: float = 0.0  # tokens/s, 0 = no promise
    background: bool = False
    device: str = ""  # its name: under it the server remembers how it drafts

    def opening(self, task: Task, drafts: bool) -> dict[str, Any]:
        """Fields of `Open`. A sequence for which nobody drafts is a stranger's: nothing is to be expected of it."""
        return {
            "pace": self.pace if task.pace is None else task.pace,
            "background": self.background if task.background is None else task.background,
            "device": self.device if drafts else "",
        }


@dataclass(frozen=True)
class Stats:
    """The account of one answer. A round is a verdict that answers a non-empty draft."""

    prompt_tokens: int
    completion_tokens: int
    rounds: int = 0
    drafted: int = 0  # tokens proposed in those rounds
    accepted: int = 0  # of them, tokens that stand in the truth
    round_tokens: int = 0  # tokens committed by those rounds: accepted, recovered and bonus
    wasted: int = 0  # tokens drafted ahead of verdicts, and in vain
    server_decoded: int = 0  # tokens the server committed without a draft
    # Tokens that the draft model wrote while no server could be reached; nobody verified them
    local_tokens: int = 0
    seconds: float = 0.0  # from the request to the last token

    @property
    def tokens_per_round(self) -> float:
        return self.round_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.completion_tokens / self.seconds if self.seconds else 0.0

    def figures(self) -> dict[str, float]:
        """The account as people and programs read it."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens_per_round": round(self.tokens_per_round, 3),
            "wasted": self.wasted,
            "server_decoded": self.server_decoded,
            "local_tokens": self.local_tokens,
            "tokens_per_second": round(self.tokens_per_second, 2),
        }


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer, or news of a server that lets its reader wait: then without text and tokens.

    Text may lag behind its tokens: a character is shown once it is whole.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None  # on the last chunk: "eos", "stop" or "length"
    stats: Stats | None = None  # on the last chunk
    origins: tuple[Origin, ...] = ()  # one for each of `token_ids`
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of `token_ids`, when asked for
    waiting: float = 0.0  # seconds without a word from the server; 0 = this is one
    provisional: str = ""  # the draft model's guess of the text after this; replaces that of the chunk before
