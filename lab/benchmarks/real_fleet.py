"""Users of one real server, and the emulated devices that answer them: each replays what was recorded with the pair."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from edge_client.link.link import Endpoint, Link
from hw_profiles.profiles import DraftSpeed
from lab.benchmarks.program import say
from lab.benchmarks.real_contenders import NONE
from lab.benchmarks.real_summary import mean_ratio
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.emulation.replay import NoDrafts, ReplayDrafts
from lab.testbed.fleet import Wish
from lab.testbed.load.load import Item
from lab.testbed.load.load_device import LoadDevice
from lab.testbed.load.records import Clock, RequestRecord
from lab.testbed.traces import ItemTrace, read_traces
from opensled.core.errors import OpenSledError, UsageError
from opensled.text.tokenizer import TargetTokenizer

MODEL = "llamacpp"  # drafter of the recordings with a draft model
COUNTED = 2  # answers of each user, after one that is not counted
APART = 5  # items between what two users ask first


class Replayed(NamedTuple):
    """How a device drafts."""

    drafter: str  # whose recording
    rule: Callable[[], DraftLengthPolicy]
    has_model: bool = True


CONTENDERS: Mapping[str, Replayed] = {
    "draft model": Replayed(MODEL, HintLength),
    "draft model, fixed k = 4": Replayed(MODEL, partial(FixedLength, 4)),
    "lookup": Replayed("lookup", HintLength, has_model=False),
}


class RealFleet(NamedTuple):
    """What is asked, and what was recorded there."""

    items: Sequence[Item]
    traces: Mapping[str, Mapping[str, ItemTrace]]  # drafter -> item's id -> trace
    draft_model: str = ""  # whose drafts were recorded

    @classmethod
    def of(cls, folder: Path, target: str, max_tokens: int) -> RealFleet:
        """By the recordings in `folder`; raises UsageError where nothing is recorded."""
        names = dict.fromkeys(contender.drafter for contender in CONTENDERS.values())
        paths = {name: folder / f"{target}-{name}.jsonl.gz" for name in names}
        sets = {name: read_traces(path) for name, path in paths.items() if path.is_file()}
        traces = {name: {trace.item: trace for trace in each.items} for name, each in sets.items()}
        if not traces:
            raise UsageError(
                f"nothing is recorded in {folder} for {target}; record it: "
                f"python -m lab.testbed.emulation.recorder --target {target}"
            )
        items = [
            replace(item, max_tokens=min(item.max_tokens, max_tokens))
            for item in recorded_items(target)
            if all(item.id in each for each in traces.values())
        ]
        return cls(items, traces, str(sets[MODEL].origin["draft_model"]) if MODEL in sets else "")

    async def row(self, server: str, users: int, speed: DraftSpeed) -> dict[str, Any]:
        """All contenders in turns, with so many users."""
        names = [name for name, contender in CONTENDERS.items() if contender.drafter in self.traces]
        rates = {name: await self._rates(server, users, name, speed) for name in (NONE, *names)}
        together = {name: users * statistics.fmean(each) for name, each in rates.items()}
        say(f"{users} users: " + ", ".join(f"{name} {rate:.1f}" for name, rate in together.items()))
        logs = {name: [log(ours / none) for ours, none in zip(rates[name], rates[NONE])] for name in names}
        return {
            "users": users,
            "no drafts, tokens/s": round(together[NONE], 2),
            "ratios": {name: mean_ratio([each]) for name, each in logs.items()},
            "rates": {name: [round(rate, 3) for rate in each] for name, each in rates.items()},
        }

    async def _rates(self, server: str, users: int, contender: str, speed: DraftSpeed) -> list[float]:
        """Tokens/s of the counted answers, user by user; users go on asking until all have theirs."""
        link, clock = Link(Endpoint(server)), Clock()
        tokenizer = TargetTokenizer(await link.tokenizer_json())
        devices = [self._device(link, tokenizer, clock, user, contender, speed) for user in range(users)]
        found: list[dict[int, float]] = [{} for _ in devices]
        complete = asyncio.Event()
        asking = [
            asyncio.ensure_future(self._ask(device, user, clock, found, complete))
            for user, device in enumerate(devices)
        ]
        over = asyncio.ensure_future(complete.wait())
        await asyncio.wait([*asking, over], return_when=asyncio.FIRST_COMPLETED)
        for task in (*asking, over):
            task.cancel()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*(device.close() for device in devices))
        await link.close()
        if error := next((end for end in ends if isinstance(end, (OpenSledError, AssertionError))), None):
            raise OpenSledError(f"{contender}, {users} users: {error}")
        return [answers[number] for answers in found for number in range(1, COUNTED + 1)]

    def _device(
        self,
        link: Link,
        tokenizer: TargetTokenizer,
        clock: Clock,
        user: int,
        contender: str,
        speed: DraftSpeed,
    ) -> LoadDevice:
        traces = next(iter(self.traces.values()))
        drafts: NoDrafts | ReplayDrafts = NoDrafts()
        if contender != NONE:
            replayed = CONTENDERS[contender]
            traces = self.traces[replayed.drafter]
            by_prompt = {trace.prompt_ids: trace for trace in traces.values()}
            pace = speed if replayed.has_model else None
            drafts = ReplayDrafts(by_prompt, pace, replayed.rule(), looks_ahead=replayed.has_model)
        return LoadDevice(link.connect, drafts, tokenizer, clock, traces=traces, wish=Wish(f"device-{user}"))

    async def _ask(
        self,
        device: LoadDevice,
        user: int,
        clock: Clock,
        found: Sequence[dict[int, float]],
        complete: asyncio.Event,
    ) -> None:
        """One user's answers; the first one only warms up."""
        for number in count():
            item = self.items[(user * APART + number) % len(self.items)]
            record = RequestRecord(user, 0, item.id, clock.now(), sent=clock.now())
            await device.ask(item, record)
            found[user][number] = record.tokens / (record.arrivals[-1].time - record.sent)
            if all(len(answers) > COUNTED for answers in found):
                complete.set()
