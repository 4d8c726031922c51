"""Heads of the `speculators` format draft what the package's own forward pass says, on heads that the package has made.

tests/golden/heads are small ones (tests/published_heads.py made them). `make speculators-check` makes others with the
package and runs this on them: PUBLISHED_HEADS names their folder.

Run: pytest tests/test_published_heads.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from opensled.messages import SamplingParams
from verify_server.drafting.base import Ask
from verify_server.engine.kv_memory import BLOCK_SIZE
from verify_server.heads.eagle3 import Eagle3Head, GainNorm
from verify_server.heads.eagle3_drafter import Eagle3Drafter
from verify_server.heads.feature_context import FeatureContext
from verify_server.heads.speculators_file import load_published

FOLDER = Path(os.environ.get("PUBLISHED_HEADS", Path(__file__).parent / "golden" / "heads"))
HEADS = sorted(path.stem for path in FOLDER.glob("*.safetensors"))
BLOCKS = 3  # of a text
NEAR = 1e-4  # float32, logits of some ten: another order of the same sums
FAR = 1e-2  # what a wrong computation is off by, at least


class Computed(NamedTuple):
    chains: Tensor  # [B, k] ids of the target
    logits: Tensor  # [B, k, V]


def computed(name: str, change: Callable[[Eagle3Head], None] | None = None) -> Computed:
    """By the product's drafter: each place of the golden text is a session of its own, read in pieces."""
    found, golden = load_published(FOLDER / name), load_file(FOLDER / f"{name}.safetensors")
    head, places = found.head, golden["places"].tolist()
    if change is not None:
        change(head)
    if head.shape.own_embedding:
        assert torch.equal(head.embed_tokens.weight, golden["table"])
    context = FeatureContext(head, (), golden["table"], BLOCKS * len(places), shared=True)
    order = (
        torch.randperm(BLOCKS * len(places), generator=torch.Generator().manual_seed(1))
        .view(-1, BLOCKS)
        .tolist()
    )
    ids, asks = golden["ids"].tolist(), []
    for session, (place, blocks) in enumerate(zip(places, order)):
        asks.append(
            Ask(
                session,
                "",
                ids[: place + 1],
                golden["chains"].shape[1],
                SamplingParams(0.0),
                b"",
                tuple(blocks),
            )
        )
        rows = torch.arange(place)
        slots = torch.tensor(blocks)[rows // BLOCK_SIZE] * BLOCK_SIZE + rows % BLOCK_SIZE
        for piece in rows.split(7):
            with torch.inference_mode():
                context.read(golden["hidden"][piece], piece, slots[piece])
    logits: list[Tensor] = []
    head.lm_head.register_forward_hook(lambda *passed: logits.append(passed[2]))
    made = Eagle3Drafter(head, context, found.draft_ids).propose(asks)
    return Computed(torch.tensor([proposal.block.ids for proposal in made]), torch.stack(logits, dim=1))


def difference(name: str, found: Computed) -> float:
    """The largest of a logit; infinite for other tokens."""
    golden = load_file(FOLDER / f"{name}.safetensors")
    if not torch.equal(found.chains, golden["chains"]):
        return float("inf")
    return float((found.logits - golden["logits"]).abs().max())


def test_there_are_heads_of_each_form() -> None:
    assert HEADS == ["llama", "llama-scaled", "qwen3", "qwen3-output"]


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_the_packages(name: str) -> None:
    found = difference(name, computed(name))
    print(f"{name}: the largest difference of a logit is {found:.2e}")
    assert found < NEAR


def flipped(flag: str) -> Callable[[Eagle3Head], None]:
    def change(head: Eagle3Head) -> None:
        head.shape = replace(head.shape, **{flag: not getattr(head.shape, flag)})

    return change


def like_gemma(head: Eagle3Head) -> None:
    """The gain of a Gemma's norm is 1 + weight; that of a head beside it is not."""
    for module in head.modules():
        if isinstance(module, GainNorm):
            module.weight.data = module.weight.data + 1


def a_row_behind(head: Eagle3Head) -> None:
    kept = head.keys_values
    head.keys_values = lambda embedded, features, positions: kept(embedded, features, positions + 1)  # type: ignore[method-assign]


def other_frequencies(head: Eagle3Head) -> None:
    assert head.frequencies is not None
    head.frequencies = head.frequencies._replace(each=head.frequencies.each * 1.5)


def in_another_order(head: Eagle3Head) -> None:
    """As if the hidden states came from other layers than the head names."""
    fused = head.features
    head.features = lambda hidden: fused(hidden.flip(1))  # type: ignore[method-assign]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(
    "fault",
    [
        flipped("norm_before_residual"),
        flipped("norm_output"),
        like_gemma,
        a_row_behind,
        other_frequencies,
        in_another_order,
    ],
)
def test_a_trap_of_the_format_is_seen(name: str, fault: Any) -> None:
    assert difference(name, computed(name, fault)) > FAR


@pytest.mark.parametrize("name", HEADS)
def test_offsets_are_added(name: str) -> None:
    """`d2t` holds no ids."""
    found, tensors = load_published(FOLDER / name), load_file(FOLDER / name / "model.safetensors")
    if "d2t" not in tensors:
        assert found.draft_ids.tolist() == list(range(found.head.shape.target_vocabulary))
        return
    assert found.draft_ids.tolist() == tensors["t2d"].nonzero().flatten().tolist()
    assert found.draft_ids.tolist() != tensors["d2t"].tolist()


def test_hidden_states_that_a_file_does_not_name() -> None:
    config = load_published(FOLDER / "qwen3").config
    assert config.places is None and config.shape.taps == 3
    assert config.places_in(32) == (2, 16, 29) and config.places_in(28) == (2, 14, 25)
    assert load_published(FOLDER / "llama").config.places_in(32) == (1, 2, 4)
