"""The position rules, without I/O: the whole consistency model between a device and a server.

The server's committed tokens are the truth and only grow; everything else is an account of them that starts at
a `base`. Behind the truth a relay may know more: vetted tokens, which are what comes next in all likelihood, until the
target confirms them or says otherwise. Both ends use these functions, and nothing else decides what a position means
(docs/protocol.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from opensled.core.errors import FutureBase, TruthConflict
from opensled.core.messages import DraftBlock, Verdict


def rebase(block: DraftBlock, committed: Sequence[int]) -> DraftBlock | None:
    """The part of `block` that still drafts beyond `committed`, or None when it is stale.

    A block built on fewer tokens survives if its head equals what was committed since; its rest is then a block
    at the new position. A tree descends along the committed tokens and keeps what grows there.
    """
    if block.base > len(committed):
        raise FutureBase(
            f"draft is built on {block.base} tokens, but only {len(committed)} are committed; "
            "reopen the sequence with the tokens you hold"
        )
    if block.base == len(committed):  # nearly always
        return block
    since = tuple(committed[block.base :])
    if block.parents:
        return _subtree(block, since)
    if block.ids[: len(since)] != since:
        return None
    return DraftBlock(len(committed), block.tokens[len(since) :])


def follow_path(block: DraftBlock, tokens: Sequence[int]) -> tuple[int, ...]:
    """Indices into the block's tokens, from the base on, of the path that `tokens` take through it."""
    if not block.parents:
        return tuple(range(common_prefix(block.ids, tokens)))
    path: list[int] = []
    for token in tokens:
        child = child_with(block, path[-1] if path else -1, token)
        if child is None:
            break
        path.append(child)
    return tuple(path)


def child_with(block: DraftBlock, parent: int, id: int) -> int | None:
    """Index of the child of a tree's token `parent` (-1 = of the base) with this id; of twins the first."""
    for index in range(parent + 1, len(block.tokens)):
        if block.parents[index] == parent and block.tokens[index].id == id:
            return index
    return None


def likeliest_path(block: DraftBlock) -> DraftBlock:
    """A tree as the chain of its first branch; a chain as it is."""
    path: list[int] = []
    for index, parent in enumerate(block.parents):
        if parent == (path[-1] if path else -1):
            path.append(index)
    return DraftBlock(block.base, tuple([block.tokens[index] for index in path])) if path else block


def _subtree(block: DraftBlock, since: Sequence[int]) -> DraftBlock | None:
    """What of a tree grows on the path that `since` takes through it, or None where that leaves the tree."""
    path = follow_path(block, since)
    if len(path) < len(since):
        return None
    numbers = {path[-1] if path else -1: -1}  # old index -> new one, of the surviving tokens
    for index, parent in enumerate(block.parents):
        if parent in numbers:
            numbers[index] = len(numbers) - 1
    kept = list(numbers)[1:]
    parents = tuple([numbers[block.parents[index]] for index in kept])
    return DraftBlock(block.base + len(since), tuple([block.tokens[index] for index in kept]), parents)


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Length of the longest common prefix."""
    length = 0
    for a, b in zip(left, right):
        if a != b:
            break
        length += 1
    return length


def overlap(text: str, whole: str) -> int:
    """Length of the longest tail of `text` that begins `whole` without being all of it."""
    for length in range(min(len(text), len(whole) - 1), 0, -1):
        if whole.startswith(text[-length:]):
            return length
    return 0


class Truth:
    """One end's copy of the tokens of a sequence. A device feeds it with verdicts (`extend`), in any order and also
    repeatedly; a server with the decisions of its model (`decide`); a relay also with the verdicts of its upstream
    server (`follow`).

    `tokens` are all known tokens: the first `confirmed` of them are committed, the others vetted by a relay. Without a
    relay all are committed. `rewinds` counts how often vetted tokens were taken back; `kept` is the number of tokens
    that remained the last time. `finish_reason`: why it ends, "" = it goes on; a vetted end may be taken back.
    """

    def __init__(self, prompt_ids: Sequence[int], committed: Sequence[int] = ()) -> None:
        self.prompt_length = len(prompt_ids)
        self.tokens = [*prompt_ids, *committed]
        self.confirmed = len(self.tokens)
        self.finish_reason = ""
        self.rewinds = self.kept = 0
        self._revision = 0  # of the vetted tokens, by the latest verdict

    def __len__(self) -> int:
        """The number of known tokens."""
        return len(self.tokens)

    @property
    def generated(self) -> tuple[int, ...]:
        """The tokens committed after the prompt."""
        return tuple(self.tokens[self.prompt_length : self.confirmed])

    @property
    def vetted(self) -> tuple[int, ...]:
        """The tokens after the committed ones."""
        return tuple(self.tokens[self.confirmed :])

    def extend(self, verdict: Verdict) -> tuple[int, ...] | None:
        """Apply the new part of a verdict and return the tokens that it commits; None = there is a gap (an earlier
        verdict is missing)."""
        base, confirmed = verdict.base, self.confirmed
        if base > confirmed:
            return None
        end = base + len(verdict.tokens)
        final, known = end - verdict.vetted, confirmed - base
        held = tuple(self.tokens[base : min(confirmed, final)])
        if held != verdict.tokens[: len(held)]:
            raise TruthConflict(
                f"server and device disagree on a token committed after position {base}; "
                "the answer cannot be continued"
            )
        if self.is_newer(verdict):
            self._replace_tail(verdict.tokens[known:])
            self.confirmed, self._revision = final, verdict.revision
        if self.confirmed == end:
            self.finish_reason = self.finish_reason or verdict.finish_reason
        return verdict.tokens[known : final - base]

    def is_newer(self, verdict: Verdict) -> bool:
        """Whether a verdict has new tokens, or takes back vetted ones."""
        end = verdict.base + len(verdict.tokens)
        return (end - verdict.vetted, verdict.revision, end) > (
            self.confirmed,
            self._revision,
            len(self.tokens),
        )

    def decide(self, news: Sequence[int], finish_reason: str, final: bool = True) -> None:
        """The model at this end has decided `news`; they are committed, or only vetted (`final` False)."""
        self.tokens.extend(news)
        self.finish_reason = finish_reason
        if final:
            self.confirmed = len(self.tokens)

    def settle(self) -> None:
        """All vetted tokens are committed now."""
        self.confirmed = len(self.tokens)

    def follow(self, news: Sequence[int], final: int, finish_reason: str = "") -> int:
        """The upstream server says that `news` follow the committed tokens here, the first `final` of them for good.

        Tokens vetted here stay if they agree with `news` and continue them. At the first difference, the vetted tokens
        from there on are taken back; so are those after an end named by the upstream server (`finish_reason`). Returns
        how many of `news` were known.
        """
        known = common_prefix(self.vetted, news)
        if known < len(news) or finish_reason:
            self._replace_tail(news)
            self.finish_reason = ""
        self.confirmed += final
        if self.confirmed == len(self.tokens):
            self.finish_reason = finish_reason  # ends above may be others than here
        return known

    def forget_vetted(self) -> None:
        """Drop the vetted tokens: the server that answers next may not have them."""
        self._replace_tail(())
        self._revision = 0

    def _replace_tail(self, tail: Sequence[int]) -> None:
        """Replace the known tokens after the committed ones."""
        if self.confirmed < len(self.tokens):
            kept = self.confirmed + common_prefix(self.tokens[self.confirmed :], tail)
            if kept < len(self.tokens):
                self.rewinds, self.kept = self.rewinds + 1, kept
        self.tokens[self.confirmed :] = tail


@dataclass(frozen=True)
class EndRules:
    """The ends of a sequence: token ids, or a number of positions."""

    eos_ids: frozenset[int]
    stop_ids: frozenset[int]
    last_length: int  # committed length, prompt included, at which max_tokens or the context ends it

    @property
    def ids(self) -> frozenset[int]:
        """All ids that end the sequence."""
        return self.eos_ids | self.stop_ids if self.stop_ids else self.eos_ids


def cut(tokens: Sequence[int], base: int, ends: EndRules) -> tuple[tuple[int, ...], str]:
    """The part of newly decided `tokens` that commits at `base`, and the finish reason ("" = goes on).

    An end in the middle of a draft ends the commit there: no bonus token after it.
    """
    if base >= ends.last_length:  # of a sequence without an answer
        return (), "length"
    is_short = base + len(tokens) < ends.last_length
    if is_short and ends.eos_ids.isdisjoint(tokens) and ends.stop_ids.isdisjoint(tokens):  # nearly always
        return tuple(tokens), ""
    for index, token in enumerate(tokens):
        if token in ends.eos_ids:
            return tuple(tokens[: index + 1]), "eos"
        if token in ends.stop_ids:
            return tuple(tokens[: index + 1]), "stop"
        if base + index + 1 >= ends.last_length:
            return tuple(tokens[: index + 1]), "length"
    return tuple(tokens), ""
