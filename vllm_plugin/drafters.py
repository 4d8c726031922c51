"""vLLM's own drafter beside the devices: its `speculative_config`, from a name.

Its proposals are verified for users, and for sessions whose device rests; a device's draft takes their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opensled.core.errors import UsageError

LONGEST = 128  # draft tokens of a sequence in one step; vLLM verifies no more
NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # tokens that must repeat before it proposes
# Each answer has a tree of its own: one of all answers would draft a tenant's text for another one, who sees the pace.
SUFFIX = {"suffix_decoding_max_cached_requests": 0}
WITH_MODEL = ("draft_model", "eagle3", "dflash")  # those that need a model of their own
TUNED: Mapping[str, Mapping[str, int]] = {"ngram": NGRAM, "suffix": SUFFIX}
NAMES = ("ngram", "suffix", "mtp", *WITH_MODEL)


def speculative_config(name: str, model: str, longest: int) -> dict[str, Any]:
    """vLLM's configuration of a drafter of `NAMES`; `model`: its own, a folder or a hub id, "" = none; `longest`: draft
    tokens. Raises UsageError."""
    if not 1 <= longest <= LONGEST:
        raise UsageError(
            f"engine vllm verifies drafts of 1 to {LONGEST} tokens, not {longest}; set server-draft in [serve]"
        )
    found: dict[str, Any] = {"num_speculative_tokens": longest}
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
