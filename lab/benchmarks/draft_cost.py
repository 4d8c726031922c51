"""What drafting takes: the time of trees from tables, and the passes of a draft model with tables in front."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from edge_client.drafters import DRAFTERS
from edge_client.drafters.accelerated import AcceleratedDrafter
from edge_client.drafters.base import Drafter
from edge_client.drafters.cacheback import CachebackFactory
from lab.testbed.provenance import SEED
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler

MODEL = "tiny-draft"
LENGTH, NODES = 8, 60  # of a chain, of a tree
GREEDY = Sampler(SamplingParams(temperature=0), noise_key(SEED))


def draft_time(texts: Sequence[Sequence[int]], repeats: int = 3) -> dict[str, list[float]]:
    """Milliseconds that a whole tree takes and that learning from a verdict takes, in each repeat.

    By the clock, and of the processor: on a machine with other work the clock also counts what others take.
    """
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        trees, commits = _drafted(texts)
        whole = [cost for cost, nodes in trees if nodes == NODES]
        found.setdefault(f"trees of {NODES} tokens", []).append(len(whole))
        for what, costs in (("tree", whole or [cost for cost, _ in trees]), ("verdict", commits)):
            for clock, of in (("clock", 0), ("processor", 1)):
                seconds = sorted(cost[of] for cost in costs)
                for name, share in (("median", 0.5), ("p99", 0.99)):
                    quantile = seconds[int(share * (len(seconds) - 1))]
                    found.setdefault(f"{what}, {clock}, {name}", []).append(round(1000 * quantile, 4))
    return found


Cost = tuple[float, float]  # seconds by the clock, and of the processor


def _drafted(texts: Sequence[Sequence[int]]) -> tuple[list[tuple[Cost, int]], list[Cost]]:
    """Cost and nodes of a tree after every third token of the texts; cost of learning those three."""
    drafter = CachebackFactory(MODEL).create()
    trees, commits = [], []
    for text in texts:
        drafter.begin(text[:4], GREEDY)
        for at in range(4, len(text), 3):
            commits.append(_cost(partial(drafter.commit, text[at : at + 3])))
            nodes: list[object] = []
            cost = _cost(lambda: nodes.extend(islice(drafter.propose_tree(), NODES)))  # noqa: B023
            trees.append((cost, len(nodes)))
    return trees, commits


def _cost(work: Callable[[], object]) -> Cost:
    clock, processor = time.perf_counter(), time.thread_time()
    work()
    processor = time.thread_time() - processor
    return time.perf_counter() - clock, processor


def acceleration(texts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Draft tokens, passes and seconds of the model for blocks of LENGTH, alone and with tables in front."""
    drafters = {name: DRAFTERS.get(name)(MODEL, 1).create() for name in ("llamacpp", "accelerated:llamacpp")}
    passes = {name: _count_passes(drafter) for name, drafter in drafters.items()}
    blocks: dict[str, list[list[int]]] = {name: [] for name in drafters}
    seconds = dict.fromkeys(drafters, 0.0)
    for name, drafter in drafters.items():
        started = time.perf_counter()
        blocks[name] = [block for text in texts for block in _blocks(drafter, text)]
        seconds[name] = time.perf_counter() - started
        drafter.close()
    alone, fast = blocks.values()
    same = sum(left == right for left, right in zip(alone, fast)) / len(alone)
    tokens = sum(map(len, alone))
    return {
        "draft tokens": tokens,
        "blocks that are the same": round(same, 4),
        "passes a token, alone": round(len(passes["llamacpp"]) / tokens, 3),
        "passes a token, accelerated": round(len(passes["accelerated:llamacpp"]) / tokens, 3),
        "ms a token, alone": round(1000 * seconds["llamacpp"] / tokens, 3),
        "ms a token, accelerated": round(1000 * seconds["accelerated:llamacpp"] / tokens, 3),
    }


def _count_passes(drafter: Drafter) -> list[str]:
    """A list that grows by one with each pass of the drafter's model."""
    passes: list[str] = []
    model = drafter._model if isinstance(drafter, AcceleratedDrafter) else drafter
    for name in ("forward", "forward_rows"):

        def counted(*arguments: Any, name: str = name, call: Any = getattr(model, name)) -> Any:
            passes.append(name)
            return call(*arguments)

        setattr(model, name, counted)
    return passes


def _blocks(drafter: Drafter, text: Sequence[int]) -> Iterable[list[int]]:
    """Drafts along a text that is accepted as far as they agree with it."""
    drafter.begin(text[:8], GREEDY)
    at = 8
    while at < len(text):
        block = [token.id for token in islice(drafter.propose(), LENGTH)]
        yield block
        agreed = 0
        while agreed < len(block) and at + agreed < len(text) and block[agreed] == text[at + agreed]:
            agreed += 1
        drafter.commit(text[at : at + agreed + 1])
        at += agreed + 1
