"""A drafter that lies about its drafts: the tokens are another drafter's, the confidences mostly are not."""

import random
from collections.abc import Callable, Iterator, Sequence

from edge_client.drafters.base import Drafter
from opensled.core.messages import DraftToken, TreeNode
from opensled.core.sampling import Sampler

SURE = 254 / 255  # the highest confidence that a device can tell: 255 is for one that does not say
_Lie = Callable[[float], float]


class Liar(Drafter):
    """Of each block it tells the confidences as they are, the highest ones, none at all, or any."""

    def __init__(self, drafter: Drafter, seed: int) -> None:
        self._drafter, self._random = drafter, random.Random(seed)
        self._lies: tuple[_Lie, ...] = (
            lambda honest: honest,
            lambda honest: SURE,
            lambda honest: 0.0,
            lambda honest: self._random.random(),
        )

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._drafter.begin(prompt, sampler)

    def propose(self) -> Iterator[DraftToken]:
        lie = self._random.choice(self._lies)
        return (_told(token, lie) for token in self._drafter.propose())

    def propose_tree(self) -> Iterator[TreeNode]:
        lie = self._random.choice(self._lies)
        return (TreeNode(_told(node.token, lie), node.parent) for node in self._drafter.propose_tree())

    def commit(self, tokens: Sequence[int]) -> None:
        self._drafter.commit(tokens)

    def close(self) -> None:
        self._drafter.close()


def _told(token: DraftToken, lie: _Lie) -> DraftToken:
    return token._replace(confidence=lie(token.confidence))
