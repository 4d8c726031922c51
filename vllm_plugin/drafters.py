"""What of vLLM drafts beside the devices: vLLM's `speculative_config`, from a name.

A proposal is verified as far as a plan wants it, and never beside a draft of the sequence's device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opensled.core.errors import UsageError

LONGEST = 128  # draft tokens of a sequence in one step; vLLM verifies no more
NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # tokens that must repeat before it proposes
# Each answer has a tree of its own: one of all answers would draft a tenant's text for another one, who sees the pace.
SUFFIX = {"suffix_decoding_max_cached_requests": 0}
IN_ONE_PASS = ("suffix", "dflash")  # those that propose as many tokens as they are set up for, and no fewer
WITH_MODEL = ("draft_model", "eagle3", "dflash")  # those that need a model of their own
TUNED: Mapping[str, Mapping[str, int]] = {"ngram": NGRAM, "suffix": SUFFIX}
NAMES = ("ngram", "suffix", "mtp", *WITH_MODEL)


class NoProposals:
    """A drafter of vLLM that proposes nothing, so that vLLM verifies drafts at all; see `speculative_config`."""

    def __init__(self, vllm_config: Any) -> None:
        """vLLM gives its configuration."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is none."""

    def propose(self, sampled_token_ids: Sequence[Any], *args: Any, **kwargs: Any) -> list[list[int]]:
        """An empty proposal for each request."""
        return [[] for _ in sampled_token_ids]


def speculative_config(name: str, model: str, longest: int) -> dict[str, Any]:
    """vLLM's configuration of a drafter of `NAMES`, or "none"; `model`: its own, a folder or a hub id, "" = none;
    `longest`: draft tokens, of a device as well. Raises UsageError."""
    if not 1 <= longest <= LONGEST:
        raise UsageError(
            f"engine vllm verifies drafts of 1 to {LONGEST} tokens, not {longest}; set max-draft in [limits]"
        )
    found: dict[str, Any] = {"num_speculative_tokens": longest}
    if name == "none":
        return {**found, "method": "custom_class", "model": f"{__name__}.{NoProposals.__name__}"}
    if name not in NAMES:
        raise UsageError(
            f"engine vllm has no drafter {name!r}; choose from {', '.join(f'vllm:{each}' for each in NAMES)}"
        )
    if bool(model) != (name in WITH_MODEL):
        raise UsageError(
            f"--server-drafter vllm:{name} has no model of its own; leave out --draft-model"
            if model
            else f"--server-drafter vllm:{name} needs a model of its own: --draft-model FOLDER_OR_HUB_ID"
        )
    return {
        **found,
        "method": name,
        **({"model": model} if model else {}),
        **TUNED.get(name, {}),
    }
