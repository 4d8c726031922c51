"""What a draft head is taken for by its target's sizes, against the real modules, and its seconds by hand."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hw_profiles import catalog
from hw_profiles.profiles import TargetShape
from hw_profiles.step_cost import TargetCost
from lab.testbed.emulation.draft_head import (
    FORMS,
    KINDS,
    OWN,
    TAPS,
    VOCABULARY,
    WINDOW,
    HeadCost,
    HeadProfile,
    sessions_beside,
)
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.training.heads import config as training
from lab.training.heads.pupil import default_taps
from opensled.core.errors import UsageError
from verify_server.drafting.heads import HEADS
from verify_server.drafting.heads import context as head_context
from verify_server.drafting.heads.base import DraftHead, HeadShape
from verify_server.options.registries import SERVER_DRAFTERS

TINY = TargetShape(
    "tiny", "tiny", "models/tiny", 4e6, 4e6, 5, 2, 64, hidden_size=256, heads=4, inner_size=704
)
SMOLLM2 = catalog.target("draft-135m")
A100 = catalog.accelerator("a100-80")
# Modules that make the context, in the target's own step
OF_ROWS = {"specformer": ("tap_norms", "down", "context_norm", "context"), "ctc": ("context_norm", "context")}

every_kind = pytest.mark.parametrize("kind", OWN)
every_size = pytest.mark.parametrize("target", [TINY, SMOLLM2], ids=lambda target: target.id)


def module_of(profile: HeadProfile) -> DraftHead:
    target = profile.target
    shape = HeadShape(
        profile.kind,
        default_taps(target.layers)[0 if profile.kind == "specformer" else -1 :],
        target.hidden_size,
        target.heads,
        target.kv_heads,
        target.head_dim,
        target.inner_size,
        profile.length,
        profile.vocabulary,
        markov=profile.markov,
    )
    return HEADS.get(profile.kind)(shape)


def cost(kind: str, target: str = "dense-8b") -> HeadCost:
    return HeadCost(A100, HeadProfile.usual(kind, catalog.target(target)))


# -- against the modules ----------------------------------------------------------------------------------------


@every_kind
@every_size
def test_its_weights_are_those_of_the_module(kind, target):
    profile = HeadProfile.usual(kind, target)
    sizes = {name: weight.numel() for name, weight in module_of(profile).named_parameters()}
    assert profile.params == sum(sizes.values())
    rows = [size for name, size in sizes.items() if name.split(".")[0] in OF_ROWS[kind]]
    assert profile.weights.row == sum(rows)


@pytest.mark.parametrize("length", [3, 8])
@pytest.mark.parametrize("markov", [0, 16])
def test_so_they_are_with_other_lengths_and_biases(length, markov):
    profile = HeadProfile("specformer", TINY, length, markov, vocabulary=300)
    assert profile.params == sum(weight.numel() for weight in module_of(profile).parameters())


@every_kind
@every_size
def test_its_context_has_the_bytes_that_the_module_writes(kind, target):
    head = module_of(profile := HeadProfile.usual(kind, target))
    rows = head.read(torch.zeros(3, len(head.shape.taps), target.hidden_size), torch.arange(3))
    assert profile.kv_bytes == 2 * sum(tensor[0].numel() for tensor in rows)  # 16 bits each
    assert profile.attended_bytes == 2 * (rows.keys[0].numel() + rows.values[0].numel())


@every_kind
@every_size
def test_its_operations_are_those_of_the_module(kind, target):
    """But for norms, which are counted, and attention and the bias between neighbours, which are not."""
    head, drafts = module_of(profile := HeadProfile(kind, target, 5)), 3
    rows = torch.zeros(drafts, target.hidden_size)
    with FlopCounterMode(display=False) as reading:
        head.read(torch.zeros(drafts, len(head.shape.taps), target.hidden_size), torch.arange(drafts))
    with FlopCounterMode(display=False) as drafting:
        head.draft(rows, rows, torch.arange(drafts), lambda queries, own: queries)
    assert reading.get_total_flops() == pytest.approx(2 * drafts * profile.weights.row, rel=0.01)
    output = 2 * profile.length * profile.output_params
    assert drafting.get_total_flops() == pytest.approx(drafts * (profile.draft_operations - output), rel=0.02)


def test_what_is_taken_for_granted_of_heads_is_so():
    for kind in OWN:
        assert (FORMS[kind].length, FORMS[kind].markov) == training.FORMS[kind][1:]
    assert training.TrainHeadConfig().vocabulary == VOCABULARY
    assert head_context.WINDOW == WINDOW and len(default_taps(30)) == TAPS
    assert set(HEADS.names()) & set(SERVER_DRAFTERS.names()) == set(OWN)


@pytest.mark.parametrize("name", catalog.names("targets"))
def test_packaged_targets_say_what_heads_are_built_by(name):
    """With these sizes the layers leave room for an embedding and an output layer, or one for both."""
    shape = catalog.target(name)
    heads = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    layer = shape.hidden_size * (heads + 3 * shape.inner_size)
    if not shape.experts and not shape.kv_layers:
        assert 45_000 < (shape.params - shape.layers * layer) / shape.hidden_size < 320_000
    assert all(HeadProfile.usual(kind, shape).params < 0.1 * shape.params for kind in KINDS)


def test_a_head_that_others_trained_reads_its_share_for_each_token_or_for_a_block():
    target = catalog.target("dense-27b").at(4.5)
    mtp, block = (HeadCost(A100, HeadProfile.usual(kind, target)) for kind in ("mtp", "dflash2"))
    assert mtp.draft_s(3, 1, 0) == pytest.approx(3 * (0.06 * target.weight_bytes / 1631e9 + 0.003), rel=1e-3)
    assert block.draft_s(7, 1, 0) == block.draft_s(1, 1, 0) == block.verify_s(1, 0)
    assert mtp.longest == 6 and mtp.context_s(8) == 0


def test_a_target_that_does_not_say_its_sizes_has_no_head():
    with pytest.raises(UsageError, match=r"target tiny lacks heads, inner_size, which"):
        HeadProfile.usual("ctc", replace(TINY, heads=0, inner_size=0))


# -- seconds ----------------------------------------------------------------------------------------------------


@every_kind
def test_one_pass_drafts_any_number_of_tokens(kind):
    head = cost(kind)
    assert head.draft_s(1, 4, 4096) == head.draft_s(8, 4, 4096) == head.verify_s(4, 4096) > 0
    assert head.draft_s(0, 4, 4096) == head.verify_s(0, 0) == head.context_s(0) == 0
    law = StepLaw(TargetCost(A100, catalog.target("dense-8b")), head, context=1024).drafting
    assert law is not None
    assert law.passes(8) == 1 and law.seconds(8, 0, 1000) == law.seconds(1, 0, 0) == head.verify_s(1, 0)
    assert law.seconds(1, head.longest, 0) == pytest.approx(head.verify_s(1, 1024))


def test_a_pass_follows_the_roofline_by_hand():
    """d = 4096, queries 4096, keys 1024 wide, feed-forward 14336, a bias of rank 128; 8192 rows of the output layer."""
    draft = 2 * 4096**2 + 4096**2 + 5 * 4096**2
    place = 2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 8192 * 128
    rows = 8192 * 4096
    read = 2 * (draft + place + rows) / 1631e9
    assert cost("specformer").verify_s(1, 0) == pytest.approx(read + 0.003, rel=1e-3)
    compute = 4096 * 2 * (draft + 5 * (place + rows)) / 187e12
    assert compute > 2 * read
    assert cost("specformer").verify_s(4096, 0) == pytest.approx(compute + 0.003, rel=1e-3)


def test_a_draft_attends_to_the_newest_positions_of_its_text():
    head = cost("ctc")
    near, far = (head.verify_s(2, 2 * context) - head.verify_s(2, 0) for context in (WINDOW, 8192))
    assert near == far == pytest.approx(2 * WINDOW * 2 * 8 * 128 * 2 / 1631e9)


@every_kind
def test_its_context_costs_a_step_next_to_nothing(kind):
    """It is a part of the step, and a draft model has none there."""
    target = TargetCost(A100, catalog.target("dense-8b"))
    with_head, plain = StepLaw(target, cost(kind)), StepLaw(target)
    for rows in (1, 64, 512):
        pieces = [StepPiece(rows, rows)]
        more = with_head.step_s(pieces) - plain.step_s(pieces)
        assert more == pytest.approx(cost(kind).context_s(rows))
        assert 0 < more < 0.012 * plain.step_s(pieces)
    model = TargetCost(A100, catalog.target("draft-0.5b"))
    assert StepLaw(target, model).step_s(pieces) == plain.step_s(pieces)


@every_kind
def test_weights_and_context_take_memory_from_sessions(kind):
    target, head = TargetCost(A100, catalog.target("dense-8b")), cost(kind)
    room = A100.memory_gib * 2**30 * A100.usable_memory.typical - 2 * 8.03e9
    weights = 2 * (head.head.params + 8192 * 4096)
    position = 2 * 32 * 8 * 128 * 2 + 2 * (2 * 8 * 128 + 4096)
    assert sessions_beside(target, 1, head) == int((room - weights) / position)
    assert sessions_beside(target, 1024, head) < sessions_beside(target, 1024)
