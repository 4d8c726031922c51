"""A draft head on a device that proposes what was recorded, once the hidden states that it needs have come."""

from collections.abc import Callable, Iterator, Sequence

from edge_client.drafters.base import Drafter
from hw_profiles.device_head import DeviceHeadCost
from opensled.features import FeatureRows
from opensled.messages import DraftToken
from opensled.sampling import Sampler
from opensled_testbed.traces import ItemTrace


class RecordedDeviceHead(Drafter):
    """The drafts of `trace`, set before `begin`. One pass drafts a whole block, as in the product's DeviceHead."""

    def __init__(self, cost: DeviceHeadCost, take: Callable[[float, int], None]) -> None:
        """`take`: lets seconds of the device pass, in which so many tokens are drafted."""
        self._cost, self._take = cost, take
        self.trace: ItemTrace
        self._length, self._newest = 0, -1  # tokens of the text; position of the newest row
        self._drafted: list[DraftToken] | None = None

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self.close()
        self._length = len(prompt)

    def features(self, rows: FeatureRows) -> None:
        assert len(rows.layers) == self._cost.states, "the device asked for the hidden states of another head"
        self._take(self._cost.rows_s(len(rows.positions)), 0)
        self._newest = max(self._newest, rows.positions[-1])

    def commit(self, tokens: Sequence[int]) -> None:
        self._length += len(tokens)
        self._drafted = None

    def propose(self) -> Iterator[DraftToken]:
        if self._newest < self._length - 2:
            return
        if self._drafted is None:
            self._drafted = self._recorded()
            if self._drafted:  # behind a token that it does not know a head computes nothing
                self._take(self._cost.block_s, len(self._drafted))
        yield from self._drafted

    def _recorded(self) -> list[DraftToken]:
        """All that was recorded here; a recording ends where the head's block did."""
        place = self._length - len(self.trace.prompt_ids)
        ids = self.trace.proposals[place] if place < len(self.trace.proposals) else None
        found = zip(ids.ids, ids.confidences) if ids else ()
        return [DraftToken(id, chance) for id, chance in found]

    def close(self) -> None:
        self._length, self._newest, self._drafted = 0, -1, None
