"""A progress bar on standard error, if that is a terminal."""

import sys

WIDTH = 24  # characters


def bar(done: float, total: float) -> str:
    """The bar alone."""
    return f"{'#' * int(WIDTH * min(1.0, done / (total or 1))):.<{WIDTH}}"


class ProgressBar:
    """`word` and how many of `total` bytes are done; use it in a `with`."""

    def __init__(self, word: str, total: int) -> None:
        self._word, self._total = word, max(1, total)
        self._shown = sys.stderr.isatty()

    def show(self, done: int, before: int = 0) -> None:
        """`done`: bytes so far, of this file and of those `before` it."""
        done += before
        if self._shown:
            numbers = f"{done / 1e6:.0f} of {self._total / 1e6:.0f} MB"
            print(f"\r{self._word} {bar(done, self._total)} {numbers}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            print(file=sys.stderr)
