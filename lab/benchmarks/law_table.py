"""The planner's map in one row for each kind of drafts: at how many places which mode is worth it, by the law."""

from collections import Counter
from collections.abc import Sequence
from math import isinf

from lab.testbed.planner.mode_map import Point, panels, points
from lab.testbed.planner.planning import WORTH_IT
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.setting import work_of
from lab.testbed.planner.task_acceptance import TASKS
from lab.testbed.recordings import packaged_pairs

HEAD = (
    "drafts",
    "server decodes",
    "draft beside it",
    "devices draft",
    "none served",
    "devices gain at most",
    "there",
)


def law_rows() -> list[tuple[str, ...]]:
    """Of each recorded pair and each task, under HEAD; takes seconds."""
    tasks = sorted(TASKS, key=lambda name: TASKS[name].rate)
    return [_row(RecordedDrafts(pair)) for pair in packaged_pairs()] + [
        _row(RecordedDrafts(acceptance=name)) for name in tasks
    ]


def _row(source: RecordedDrafts) -> tuple[str, ...]:
    found = points(panels(), work_of(source))
    counts = Counter(map(_worth, found))
    gains = [point for point in found if _worth(point) == "devices" and not isinf(point.gain)]
    best = max(gains, key=lambda point: point.gain, default=None)
    label = f"{source.name} (recorded)" if source.rate is None else source.name
    kinds = ("server", "beside", "devices", "none")
    return (label, *(str(counts[kind]) for kind in kinds), *_told(best))


def _worth(point: Point) -> str:
    """Who should draft there; a gain that is not worth it counts for the server's own decoding."""
    if not point.users:
        return "none"
    if point.gain < WORTH_IT:
        return "server"
    return "devices" if point.mode.startswith("sled") else "beside"


def _told(best: Point | None) -> Sequence[str]:
    if best is None:
        return "none", ""
    server = best.server
    target = f"{server.target} on {server.accelerator}, {server.context} positions"
    return f"{best.gain:.2f}", f"{target}, {best.device}, {best.link}, {best.pace:g} tokens/s"
