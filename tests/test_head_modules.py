"""Draft heads as networks: who sees what, in training and in a server alike."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lab.training.heads.pupil import greedy_chain
from lab.training.heads.window_attention import WindowAttention
from opensled.core.errors import UnsupportedModel
from verify_server.drafting.heads import HEADS
from verify_server.drafting.heads.base import Attention, Context, DraftHead, HeadShape
from verify_server.drafting.heads.context import HeadContext
from verify_server.drafting.heads.ctc import CtcHead
from verify_server.drafting.heads.markov import MarkovBias
from verify_server.drafting.heads.specformer import SpecFormerHead
from verify_server.engine.torch.kv_memory import BLOCK_SIZE

SHAPE = HeadShape("specformer", (0, 1, 2), 24, 4, 2, 8, 40, 5, 11)
TEXT = 30  # rows of a window


def random_head(kind: str, **changes: object) -> DraftHead:
    """Every part of it counts: the product of its weights with what it reads is of the size of that."""
    taps = SHAPE.taps if kind == "specformer" else (2,)
    torch.manual_seed(4)
    head: DraftHead = HEADS.get(kind)(replace(SHAPE, kind=kind, taps=taps, **changes))
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.5 if weight.ndim < 2 else 1.5 * weight.shape[-1] ** -0.5)
    return head.double().eval()


def states(count: int, taps: int, seed: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, taps, SHAPE.size, generator=generator, dtype=torch.float64)


@torch.no_grad()
def drafted(head: DraftHead, hidden: Tensor, rows: Sequence[int], tokens: Tensor) -> Tensor:
    """[B, length, d] of drafts from these rows of one window."""
    starts = torch.tensor(rows)
    context = head.read(hidden, torch.arange(len(hidden)))
    attend = WindowAttention(context, [len(hidden)], [starts])
    return head.draft(context.inputs[starts], tokens, starts, attend)


def same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", HEADS.names())
def test_a_draft_sees_its_text_up_to_its_row(kind):
    head, rows = random_head(kind), [12]
    hidden, token = states(TEXT, len(random_head(kind).shape.taps)), states(1, 1)[:, 0]
    found = drafted(head, hidden, rows, token)
    for changed in (0, 7, 12, 13, TEXT - 1):
        other = hidden.clone()
        other[changed] += 1
        assert same(drafted(head, other, rows, token), found) == (changed > 12), changed


@pytest.mark.parametrize("kind", HEADS.names())
def test_a_draft_does_not_depend_on_those_beside_it(kind):
    head = random_head(kind)
    hidden, tokens = states(TEXT, len(head.shape.taps)), states(4, 1)[:, 0]
    rows = [3, 9, 9, 27]  # two of them from the same row, after different tokens
    together = drafted(head, hidden, rows, tokens)
    for draft, row in enumerate(rows):
        alone = drafted(head, hidden, [row], tokens[draft : draft + 1])
        assert same(together[draft], alone[0])
    assert not same(together[1], together[2])


def test_all_places_of_a_draft_see_one_another():
    """Also later ones, and alike: places have no order but what their inputs have."""
    head = random_head("specformer")
    assert isinstance(head, SpecFormerHead)
    places = states(2, SHAPE.length)
    with torch.no_grad():
        found = head._mix(places)
        for changed in range(SHAPE.length):
            other = places.clone()
            other[0, changed] += 1
            mixed = head._mix(other)
            assert not any(same(mixed[0, place], found[0, place]) for place in range(SHAPE.length))
            assert same(mixed[1], found[1])
        turned = head._mix(places.flip(1))
    assert same(turned.flip(1), found)


def test_all_frames_of_a_draft_see_one_another():
    head, row = random_head("ctc"), [12]
    assert isinstance(head, CtcHead)
    hidden, token = states(TEXT, 1), states(1, 1)[:, 0]
    found = drafted(head, hidden, row, token)
    for changed in range(SHAPE.length):
        with torch.no_grad():
            head.frames[changed] += 1
            other = drafted(head, hidden, row, token)
            head.frames[changed] -= 1
        assert not any(same(other[0, place], found[0, place]) for place in range(SHAPE.length))


@pytest.mark.parametrize("kind", HEADS.names())
def test_only_distances_between_positions_matter(kind):
    """A window is a piece of a text: where it stands changes nothing."""
    head = random_head(kind)
    hidden, token, row = states(TEXT, len(head.shape.taps)), states(1, 1)[:, 0], torch.tensor([20])

    @torch.no_grad()
    def at(first: int, gap: int = 0) -> Tensor:
        context = head.read(hidden, first + torch.arange(TEXT))
        attend = WindowAttention(context, [TEXT], [row])
        return head.draft(context.inputs[row], token, first + row + gap, attend)

    assert torch.allclose(at(0), at(700), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(at(0), at(0, gap=3), rtol=1e-3, atol=1e-3)


def by_hand(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[Q, heads, size] over [n, KV heads, size], head by head and query by query."""
    found = torch.empty_like(queries)
    share = queries.shape[1] // keys.shape[1]
    for query, head in torch.cartesian_prod(torch.arange(len(queries)), torch.arange(queries.shape[1])):
        scores = keys[:, head // share] @ queries[query, head] * queries.shape[-1] ** -0.5
        found[query, head] = scores.softmax(-1) @ values[:, head // share]
    return found


def context_of(count: int, seed: int) -> Context:
    torch.manual_seed(seed)
    keys, values = torch.randn(2, count, SHAPE.kv_heads, SHAPE.head_size, dtype=torch.float64)
    return Context(torch.randn(count, SHAPE.size, dtype=torch.float64), keys, values)


class Given(torch.nn.Module):
    """In place of a head: what it makes of a row is given."""

    shape = SHAPE

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.size = torch.nn.Parameter(torch.zeros(1))
        self.context = context

    def read(self, hidden: Tensor, positions: Tensor) -> Context:
        return self.context


def of_windows(context: Context, sizes: list[int], rows: list[list[int]]) -> Attention:
    return WindowAttention(context, sizes, [torch.tensor(own) for own in rows])


def slots_of(blocks: Sequence[int]) -> Tensor:
    return (torch.tensor(blocks)[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten()


def of_blocks(context: Context, sizes: list[int], rows: list[list[int]]) -> Attention:
    """Each text in scattered KV blocks, beside what other texts left there."""
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2)).tolist()
    blocks = [[order.pop() for _ in range(0, size, BLOCK_SIZE)] for size in sizes]
    slots = torch.cat([slots_of(own)[:size] for own, size in zip(blocks, sizes)])
    left = [torch.full_like(part[:1], torch.nan) for part in context]
    head = Given(Context(*(part.repeat_interleave(9 * BLOCK_SIZE, 0) for part in left)))
    held = HeadContext(head, 9)
    held.read(torch.empty(0), torch.empty(0), torch.arange(9 * BLOCK_SIZE))
    head.context = context
    held.read(torch.empty(0), torch.empty(0), slots)
    texts = [own for own, chosen in zip(blocks, rows) for _ in chosen]
    every = [row for chosen in rows for row in chosen]
    firsts = torch.tensor([0, *sizes[:-1]]).cumsum(0).repeat_interleave(torch.tensor(list(map(len, rows))))
    assert torch.equal(held.inputs(texts, every), context.inputs[firsts + torch.tensor(every)])
    return held.attention(texts, every)


@pytest.mark.parametrize("with_own", [False, True])
@pytest.mark.parametrize("attention", [of_windows, of_blocks])
def test_attention_is_that_of_one_row_after_the_other(attention, with_own):
    """Of windows in training, of KV blocks in a server; with own keys each draft sees its own, and no other's."""
    sizes, rows = [18, 40, 33], [[0, 5, 17], [39], [15, 16, 32, 3]]
    context = context_of(sum(sizes), seed=3)
    torch.manual_seed(8)
    queries = torch.randn(8, SHAPE.length, SHAPE.heads, SHAPE.head_size, dtype=torch.float64)
    keys, values = torch.randn(2, 8, SHAPE.length, SHAPE.kv_heads, SHAPE.head_size, dtype=torch.float64)
    own = (keys, values) if with_own else None
    found = attention(context, sizes, rows)(queries, own)
    starts = [(sum(sizes[:number]), row) for number, chosen in enumerate(rows) for row in chosen]
    for draft, (first, row) in enumerate(starts):
        seen = [part[first : first + row + 1] for part in (context.keys, context.values)]
        if own:
            seen = [torch.cat([part, extra[draft]]) for part, extra in zip(seen, own)]
        assert same(found[draft], by_hand(queries[draft], *seen))


def random_bias(vocabulary: int) -> MarkovBias:
    torch.manual_seed(1)
    bias = MarkovBias(vocabulary, 3)
    assert bias(torch.arange(vocabulary)).eq(0).all()  # a new one says nothing
    torch.nn.init.normal_(bias.after)
    torch.nn.init.normal_(bias.towards)
    return bias


@torch.no_grad()
def test_a_chain_with_a_bias_is_made_token_by_token():
    bias, logits, previous = random_bias(7), torch.randn(5, 6, 7), torch.tensor([3, -1, 0, 6, -1])
    found = greedy_chain(logits, previous, bias)
    for draft, newest in enumerate(previous.tolist()):
        for place in range(6):
            scores = logits[draft, place].clone()
            if newest >= 0:
                scores += bias.towards @ bias.after[newest]
            newest = int(scores.argmax())
            assert found[draft, place] == newest
    assert not torch.equal(found, greedy_chain(logits, previous, None))
    assert torch.equal(greedy_chain(logits, previous, None), logits.argmax(-1))


@torch.no_grad()
def test_after_what_cannot_be_drafted_there_is_no_bias():
    found = random_bias(7)(torch.tensor([[2, -1]]))
    assert found.shape == (1, 2, 7) and found[0, 1].eq(0).all() and found[0, 0].ne(0).all()


@torch.no_grad()
def test_frames_of_ctc_have_a_blank_behind_the_ids():
    logits, normed = torch.randn(2, 5, 11, dtype=torch.float64), states(2, 5)
    ctc = random_head("ctc")
    assert isinstance(ctc, CtcHead)
    found = ctc.with_blank(logits, normed)
    assert found.shape == (2, 5, 12) and torch.equal(found[..., :-1], logits)
    assert same(found[1, 2, -1], normed[1, 2] @ ctc.blank + ctc.blank_bias[0])


def test_a_bias_and_a_blank_exclude_each_other():
    with pytest.raises(UnsupportedModel, match="markov must be 0"):
        random_head("ctc", markov=4)
    assert isinstance(random_head("specformer", markov=4).markov, MarkovBias)
    assert random_head("specformer").markov is None
