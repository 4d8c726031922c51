"""What of vLLM drafts beside the devices: vLLM's `speculative_config`, from a name.

A proposal of vLLM is verified only where a sequence's device drafted nothing for the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opensled.errors import UsageError

LONGEST = 128  # draft tokens of a sequence in one step; vLLM verifies no more
NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # tokens that must repeat before it proposes
WITH_MODEL = ("draft_model", "eagle3", "dflash")  # those that need a model of their own, named behind a colon
NAMES = ("none", "ngram", "suffix", "mtp", *[f"{name}:MODEL" for name in WITH_MODEL])


class NoProposals:
    """A drafter of vLLM that proposes nothing, so that vLLM verifies drafts at all; see `speculative_config`."""

    def __init__(self, vllm_config: Any) -> None:
        """vLLM gives its configuration."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is none."""

    def propose(self, sampled_token_ids: Sequence[Any], *args: Any, **kwargs: Any) -> list[list[int]]:
        """An empty proposal for each request."""
        return [[] for _ in sampled_token_ids]


def speculative_config(name: str, longest: int) -> dict[str, Any]:
    """vLLM's configuration of a drafter by name; `longest`: draft tokens, of a device as well. Raises UsageError."""
    if not 1 <= longest <= LONGEST:
        raise UsageError(f"engine vllm verifies drafts of 1 to {LONGEST} tokens, not {longest}")
    method, _, model = name.partition(":")
    found: dict[str, Any] = {"num_speculative_tokens": longest}
    if method == "none" and not model:
        return {**found, "method": "custom_class", "model": f"{__name__}.{NoProposals.__name__}"}
    if method in ("ngram", "suffix", "mtp") and not model:
        return {**found, "method": method, **(NGRAM if method == "ngram" else {})}
    if method in WITH_MODEL and model:
        return {**found, "method": method, "model": model}
    raise UsageError(f"engine vllm has no drafter {name!r}; choose from {', '.join(NAMES)}")
