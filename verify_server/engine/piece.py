"""What packed attention computes at once for one sequence."""

from dataclasses import dataclass

from verify_server.engine.base import Segment


@dataclass(frozen=True)
class Piece:
    """Consecutive queries of one segment inside one span of places."""

    row: int  # packed row of the first query
    place: int  # of the first query; of a branch by path, its position
    queries: int
    blocks: tuple[int, ...]  # KV blocks that cover places [0, place + queries)
    padded_queries: int
    padded_keys: int  # end of the span
    path: tuple[int, ...] = ()  # of a branch by path: the places of its last keys, up to the last query's own
    tree: Segment | None = None  # some of its keys are those of this segment's tree, which a mask tells apart
