"""Whether the Triton kernels give a row the same bits in any company, and a branch of a tree those of its chain.

It is imported only where Triton is installed. For a GPU and for the tests.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.benchmarks.gpu.attention_cases import PAGE, Shape, Step
from verify_server.engine.base import Segment
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.triton_attention import SPLIT

LAST = 30  # rows at a text's end that are computed
OWN = 71  # KV blocks, over which a text is scattered
PARENTS = (-1, 0, 0, 2, 1, -1, 5)
TREE_TEXTS = (30, SPLIT - 2)  # tokens; the second so that a split ends inside the tree


class Company(NamedTuple):
    """A text, and what is computed beside it."""

    text: int  # tokens
    chunks: Sequence[tuple[int, int]]  # of its last rows: the first one, and how many
    crowd: int  # short texts
    longer: int  # tokens of another text, which has more splits

    @property
    def blocks(self) -> int:
        """KV blocks of all of them."""
        return OWN + max(self.crowd, -(-self.longer // PAGE))


LARGE = Company(2 * SPLIT + 40, ((0, 1), (3, 7), (29, 1), (11, 17)), crowd=30, longer=4 * SPLIT - 8)
# For the interpreter. A split ends among the last rows.
SMALL = Company(SPLIT + 20, ((8, 6),), crowd=2, longer=SPLIT + 600)


class Place(NamedTuple):
    """Where it is computed, and in what precision."""

    dtype: torch.dtype
    device: torch.device


def same_in_any_company(shape: Shape, place: Place, company: Company) -> dict[str, Any]:
    """The last rows of a text at once, and parts of them alone, in a crowd, and beside a longer text."""
    whole = Step(shape, [text_segment(company.text - LAST, LAST)], company.blocks)
    return _compared(_in_company(whole, _by_kernels(whole, place), place, company))


def same_as_chains(shape: Shape, place: Place, texts: Sequence[int] = TREE_TEXTS) -> dict[str, Any]:
    """The branches of a tree by path, and each of them as a chain."""
    return _compared(pair for text in texts for pair in _branches(shape, place, text))


def _compared(pairs: Iterator[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Of pairs of tensors that must have the same bits."""
    numbers = [(given.numel(), int((given != expected).sum())) for given, expected in pairs]
    differing = sum(count for _, count in numbers)
    compared = sum(count for count, _ in numbers)
    return {"holds": not differing, "pairs": len(numbers), "elements": compared, "differing": differing}


def _in_company(whole: Step, rows: Tensor, place: Place, company: Company) -> Iterator[tuple[Tensor, Tensor]]:
    for first, count in company.chunks:
        for others in _others(company):
            chunk = text_segment(company.text - LAST + first, count)
            own = Step(whole.shape, [*others, chunk], company.blocks)
            own.query[-count:] = whole.query[first:][:count]
            yield _by_kernels(own, place)[-count:], rows[first:][:count]


def _others(company: Company) -> Iterator[list[Segment]]:
    """Nobody; a short text; many rows of short texts; a row of a longer text."""
    yield []
    yield [_beside(0, 5, 0)]
    yield [_beside(0, 1 + number % 5, number) for number in range(company.crowd)]
    yield [_beside(company.longer - 1, 1, 0)]


def _beside(start: int, count: int, first: int) -> Segment:
    """Of another text, in blocks from `first` on behind those of the text that is looked at."""
    blocks = range(OWN + first, OWN + first - (-(start + count) // PAGE))
    return Segment((0,) * count, start, tuple(blocks), count)


def text_segment(start: int, count: int, parents: tuple[int, ...] = ()) -> Segment:
    """Of one text, always in the same blocks."""
    blocks = tuple([(7 * index) % OWN for index in range(-(-(start + count) // PAGE))])
    return Segment((0,) * count, start, blocks, count, parents)


def _slot(place: int) -> int:
    """Where the text's token at `place` is."""
    return (7 * (place // PAGE)) % OWN * PAGE + place % PAGE


def _branches(shape: Shape, place: Place, text: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each token of a tree behind `text` tokens: its row in the tree, and the last row of its path as a chain."""
    tree = Step(shape, [text_segment(text, 1 + len(PARENTS), PARENTS)], OWN)
    given = _by_kernels(tree, place, by_path=True)
    for node in range(len(PARENTS)):
        path = [node]
        while PARENTS[path[0]] >= 0:
            path.insert(0, PARENTS[path[0]])
        chain = Step(shape, [text_segment(text, 1 + len(path))], OWN)
        for behind, each in enumerate(path, 1):
            target, source = _slot(text + behind), _slot(text + 1 + each)
            chain.keys[target], chain.values[target] = tree.keys[source], tree.values[source]
            chain.query[behind] = tree.query[1 + each]
        yield given[1 + node], _by_kernels(chain, place)[-1]


def _by_kernels(step: Step, place: Place, by_path: bool = False) -> Tensor:
    return step.by(backend_of("triton"), place.dtype, by_path, place.device)
