"""The memory of the grammars of live answers: how much they may take together, and for one tenant."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from opensled.errors import Overloaded

# A usual schema takes 0.2 MB, one with 2,000 properties 12 MB. Chosen: hundreds of usual answers fit.
TENANT_BYTES = 128 << 20
ALL_BYTES = 512 << 20
LEAST = 200_000  # bytes of any grammar
RETRY_SECONDS = 1.0  # answers end all the time; chosen


class GrammarMemory:
    """Counts bytes by tenant; may be used in any thread."""

    def __init__(self, tenant_bytes: int = TENANT_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._most_of_one, self._most = tenant_bytes, all_bytes
        self._taken: Counter[str] = Counter()
        self._lock = threading.RLock()  # a collection within `take` may give back in the same thread

    def take(self, tenant: str, size: int) -> Callable[[], None]:
        """Count a grammar of `size` bytes; returns what gives them back, to be called once.

        Raises Overloaded if there is no room for it.
        """
        size = max(size, LEAST)
        with self._lock:
            room = min(self._most_of_one - self._taken[tenant], self._most - self._taken.total())
            if size > room:
                raise Overloaded(
                    f"a grammar of {size >> 20} MB does not fit beside those of running answers; try again later",
                    retry_after=RETRY_SECONDS,
                )
            self._taken[tenant] += size
        return partial(self._give_back, tenant, size)

    def _give_back(self, tenant: str, size: int) -> None:
        with self._lock:
            self._taken[tenant] -= size
            if not self._taken[tenant]:
                del self._taken[tenant]
