"""When verdicts came: how long a device was at work on a block."""

from collections import OrderedDict

OPEN_BLOCKS = 64  # verdicts of which the next block is awaited
# A block comes at most PAUSE_S after the verdict before it, beyond SLOWER times what its tokens usually take (chosen).
PAUSE_S, SLOWER = 1.0, 4.0


class VerdictTimes:
    """The latest verdicts of all sequences of a device, by the base of the block that follows. Times in seconds."""

    def __init__(self) -> None:
        self._ends: OrderedDict[int, float] = OrderedDict()

    def came(self, base: int, now: float) -> None:
        """A verdict came, and the next block follows the first `base` tokens."""
        self._ends[base] = now
        if len(self._ends) > OPEN_BLOCKS:
            self._ends.popitem(last=False)

    def until(self, base: int, sent_at: float, usual_s: float) -> float:
        """From the verdict before to a block that was sent at that time.

        `usual_s`: what its tokens usually take, for a verdict that is not known.
        """
        began = self._ends.pop(base, None)
        # A much earlier end belongs to another answer, which had the same length by chance.
        if began is None or sent_at - began > PAUSE_S + SLOWER * usual_s:
            return usual_s
        return max(0.0, sent_at - began)
