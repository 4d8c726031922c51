"""A device without a server: the draft model writes the whole answer, in its own words and at its own pace."""

from __future__ import annotations

from hw_profiles.device_profile import DraftSpeed
from opensled_testbed.emulation.device_time import forward_s
from opensled_testbed.load.records import Arrival, RequestRecord
from opensled_testbed.simulated.device import Done
from opensled_testbed.simulated.drafts import Script
from opensled_testbed.simulated.events import Events


class AloneDevice:
    """Writes one answer at a time, in the order in which they are asked."""

    def __init__(self, events: Events, speed: DraftSpeed) -> None:
        self._events, self._speed = events, speed
        self._free_at = 0.0

    def ask(self, record: RequestRecord, script: Script, done: Done) -> None:
        """See `SimulatedDevice.ask`."""
        record.sent = self._events.now
        record.prompt_tokens = script.prompt
        start = max(record.sent, self._free_at) + forward_s(self._speed, script.prompt)
        self._free_at = start + (script.alone - 1) * forward_s(self._speed, 1)
        self._events.at(start, self._write, (record, script, done))

    def _write(self, job: tuple[RequestRecord, Script, Done]) -> None:
        record, script, done = job
        now = self._events.now
        record.arrivals.append(Arrival(now, 1))
        if len(record.arrivals) < script.alone:
            self._events.at(now + forward_s(self._speed, 1), self._write, job)
            return
        record.finish_reason = "length" if script.alone == script.last else "eos"
        done(record)
