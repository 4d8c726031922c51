"""Measures how fast a draft model drafts on this machine, and how fast it reads a prompt. It takes about ten seconds,
also for a slow model.

Each measurement is repeated. On a busy machine the repetitions differ; their range is part of the result.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edge_client.drafters.base import Drafter, DrafterFactory
from hw_profiles.profiles import Quantity
from opensled.core.errors import UsageError
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler

SHORT_PROMPT = 8
LONG_PROMPTS = (512, 256, 64)  # the longest that fits the model and the time
CHUNK, CHUNK_S = 16, 0.5  # tokens that are timed together, and how long at most
CHUNKS, CHUNKS_S = 40, 3.0  # four at least, more while there is time
PROMPT_S = 2.0  # for one prompt; a slower model gets a shorter one
PROMPTS = 3  # of that length
SETTLED = 0.25  # share by which repetitions on a quiet machine may differ


@dataclass(frozen=True)
class SpeedReading:
    """One draft model on this machine; each list holds the repetitions."""

    decode: list[float]  # draft tokens/s
    prompt: int  # tokens of the long prompt
    prefill_per_s: list[float]  # prompt tokens/s

    @property
    def spread(self) -> float:
        """The interquartile range of the repetitions as a share of their median."""
        low, middle, high = statistics.quantiles(self.decode, n=4)
        return (high - low) / middle

    @property
    def unsettled(self) -> bool:
        """Whether the repetitions differ by more than on a quiet machine."""
        return self.spread > SETTLED


Tell = Callable[[str], None]


def measure(factory: DrafterFactory, tell: Tell) -> SpeedReading:
    """Measure a drafter; `tell` gets the name of each measurement.

    Raises UsageError for a drafter that proposes nothing, and the errors of the drafter.
    """
    drafter = factory.create()
    try:
        tell("draft speed")
        rates = _chunks(drafter)
        tell("a long prompt")
        return SpeedReading(rates, *_long_prompt(drafter))
    finally:
        drafter.close()


def quantity(samples: Sequence[float], source: str) -> Quantity:
    """The median of the repetitions and their range."""
    return Quantity(statistics.median(samples), min(samples), max(samples), source)


def _chunks(drafter: Drafter) -> list[float]:
    """Draft tokens/s of chunks, each in a fresh sequence."""
    rates, deadline = list[float](), time.monotonic() + CHUNKS_S
    while len(rates) < 4 or (len(rates) < CHUNKS and time.monotonic() < deadline):
        proposals = begin_sequence(drafter, SHORT_PROMPT, len(rates))
        if proposals is None:
            raise UsageError("this drafter has no model to measure; choose a drafter with a draft model")
        rates.append(measure_rate(proposals))
        if not rates[-1]:
            raise UsageError(
                f"this drafter stops after {SHORT_PROMPT + 1} tokens; calibrate one with a larger context"
            )
    return rates


def begin_sequence(drafter: Drafter, prompt: int, start: int) -> Iterator[DraftToken] | None:
    """A fresh sequence whose prompt is read; None if nothing follows it, such as at the end of the context.

    `start` makes prompts different, so that no cache holds them.
    """
    ids = [1 + (start + index * 7) % 500 for index in range(prompt)]
    drafter.begin(ids, Sampler(SamplingParams(temperature=0.0), noise_key(0)))
    proposals = drafter.propose()
    return proposals if next(proposals, None) is not None else None


def measure_rate(proposals: Iterator[DraftToken], most: int = CHUNK, seconds: float = CHUNK_S) -> float:
    """Tokens/s over the next `most` tokens, fewer of a slow model; 0 at the end of what it proposes."""
    started, count = time.monotonic(), 0
    while count < most and time.monotonic() < started + seconds and next(proposals, None) is not None:
        count += 1
    return count / (time.monotonic() - started) if count else 0.0


def _long_prompt(drafter: Drafter) -> tuple[int, list[float]]:
    """(tokens of the prompt, tokens/s of reading it)."""
    prompt = _longest_prompt(drafter)
    prefill: list[float] = []
    for index in range(PROMPTS):
        started = time.monotonic()
        if begin_sequence(drafter, prompt, 2 + index) is None:
            raise UsageError(
                f"the context of this draft model is too small for {prompt} tokens; choose another model"
            )
        prefill.append(prompt / (time.monotonic() - started))
    return prompt, prefill


def _longest_prompt(drafter: Drafter) -> int:
    """The longest of LONG_PROMPTS that fits the context and that the model reads in PROMPT_S."""
    started = time.monotonic()
    begin_sequence(drafter, LONG_PROMPTS[-1], 1)
    per_token = (time.monotonic() - started) / LONG_PROMPTS[-1]
    for prompt in LONG_PROMPTS[:-1]:
        if prompt * per_token < PROMPT_S and begin_sequence(drafter, prompt + CHUNK, 1) is not None:
            return prompt
    return LONG_PROMPTS[-1]
