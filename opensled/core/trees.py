"""The shape of draft trees: pure functions.

A tree is given by `parents`: for each token the index of its parent, which comes earlier; -1 = the text before it.
"""

from collections.abc import Iterator, Sequence

from opensled.core.messages import DraftBlock, DraftToken


def depths(parents: Sequence[int]) -> list[int]:
    """Length of the path that ends with each token, >= 1."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 1)
    return found


def depth(tokens: Sequence[DraftToken], parents: Sequence[int]) -> int:
    """Tokens of a draft's longest path: the most that can be accepted."""
    return max(depths(parents)) if parents else len(tokens)


def path_to(parents: Sequence[int], index: int) -> list[int]:
    """Indices of the tokens on the path to token `index`, which is the last of them."""
    path: list[int] = []
    while index >= 0:
        path.append(index)
        index = parents[index]
    return path[::-1]


def runs(parents: Sequence[int]) -> Iterator[range]:
    """The tree as runs of tokens, each token the child of the one before it; the first run follows the text."""
    start = 0
    for index in range(1, len(parents) + 1):
        if index == len(parents) or parents[index] != index - 1:
            yield range(start, index)
            start = index


def run_after(parents: Sequence[int], index: int) -> range:
    """The run of tokens that follows token `index`; -1 = the text."""
    stop = index + 1
    while stop < len(parents) and parents[stop] == stop - 1:
        stop += 1
    return range(index + 1, stop)


def confidences(block: DraftBlock) -> list[float]:
    """Of each token of a draft; see `DraftToken`."""
    return [token.confidence for token in block.tokens]


def observed_part(verified: DraftBlock, whole: DraftBlock) -> DraftBlock:
    """Of a draft the part that the target's decision tells of: what was `verified`, and of a chain the token after it,
    for which the target's own one is there in any case. Without that token, drafts of which only likely tokens are
    verified would all look good."""
    return verified if whole.parents else whole.first(len(verified.tokens) + 1)


def list_trials(block: DraftBlock, path: Sequence[int]) -> list[tuple[float, bool]]:
    """Of each token behind nothing but tokens that stand: its confidence, and whether it stands.

    `path`: indices of the tokens that stand. The target was asked for the token after each of them.
    """
    if not block.parents:
        stands = len(path)
        return [(token.confidence, index < stands) for index, token in enumerate(block.tokens[: stands + 1])]
    stand = {-1, *path}
    return [
        (token.confidence, index in stand)
        for index, (token, parent) in enumerate(zip(block.tokens, block.parents))
        if parent in stand
    ]


def likeliest_first(block: DraftBlock, reach: Sequence[float]) -> DraftBlock:
    """A tree with its likeliest tokens first; `reach`: of each token the chance that it stands with all before it, () =
    unknown, and the order stays."""
    if not reach:
        return block
    return _reorder(block, sorted(range(len(block.tokens)), key=lambda index: -reach[index]))


def without_twins(block: DraftBlock) -> DraftBlock:
    """The same paths, each of them once: children of one token with equal ids become one."""
    numbers: list[int] = []  # old index -> new one
    found: dict[tuple[int, int], int] = {}  # by (parent, id)
    order: list[int] = []
    for index, (token, parent) in enumerate(zip(block.tokens, block.parents)):
        key = (numbers[parent] if parent >= 0 else -1, token.id)
        if key not in found:
            found[key] = len(order)
            order.append(index)
        numbers.append(found[key])
    tokens = tuple([block.tokens[index] for index in order])
    return DraftBlock(block.base, tokens, tuple([parent for parent, _ in found]))


def together(first: DraftBlock, second: DraftBlock) -> DraftBlock:
    """A chain and a chain or tree that follow the same text as one tree, what both begin with once; a chain if one
    begins the other."""
    if not (first.tokens and second.tokens):
        return first if first.tokens else second
    assert not first.parents, "the first one is a chain"
    fork = len(first.tokens)
    behind = second.parents or range(-1, len(second.tokens) - 1)
    parents = (*range(-1, fork - 1), *[parent + fork if parent >= 0 else -1 for parent in behind])
    both = DraftBlock(first.base, first.tokens + second.tokens, parents)
    return depth_first(without_twins(both))


def no_deeper(block: DraftBlock, longest: int) -> DraftBlock:
    """Without the tokens deeper than `longest`."""
    if not block.parents:
        return block.first(longest)
    return _reorder(block, [index for index, each in enumerate(depths(block.parents)) if each <= longest])


def no_wider(block: DraftBlock, branches: int) -> DraftBlock:
    """The first tokens of a tree, as many as have at most this many `branches`."""
    inner: set[int] = set()  # tokens with a child
    for index, parent in enumerate(block.parents):
        branches -= parent in inner
        if branches < 1:
            return block.first(index)
        inner.add(parent)
    return block


def depth_first(block: DraftBlock) -> DraftBlock:
    """A tree with every branch as one run, the likeliest branch first; a tree of one branch becomes a chain."""
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(block.parents):
        children.setdefault(parent, []).append(index)
    order: list[int] = []
    ahead = children.get(-1, [])[::-1]
    while ahead:
        order.append(ahead.pop())
        ahead += children.get(order[-1], [])[::-1]
    tree = _reorder(block, order)
    is_chain = tree.parents == tuple(range(-1, len(order) - 1))
    return DraftBlock(tree.base, tree.tokens) if is_chain else tree


def _reorder(block: DraftBlock, order: Sequence[int]) -> DraftBlock:
    """The tokens of these indices; each parent must come before its children."""
    numbers = {-1: -1, **{old: new for new, old in enumerate(order)}}
    return DraftBlock(
        block.base,
        tuple([block.tokens[index] for index in order]),
        tuple([numbers[block.parents[index]] for index in order]),
    )
