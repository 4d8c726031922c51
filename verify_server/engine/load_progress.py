"""What every engine tells of a start, in the same words."""

from collections.abc import Iterator
from contextlib import contextmanager

from opensled.process.logs import tell, tell_long


def tell_read(num_weights: int, seconds: float) -> None:
    tell(
        f"read {num_weights / 1e6:,.0f} million weights in {seconds:.1f} s; testing how this machine computes them"
    )


@contextmanager
def told_tested() -> Iterator[None]:
    """While inside, the weights are tested."""
    with tell_long("still testing") as testing:
        yield
    tell(f"tested in {testing.seconds:.1f} s")
