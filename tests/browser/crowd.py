"""Many drafting devices in one process, for the page of a fleet: `with Crowd(server, names):`."""

import asyncio
import threading

from edge_client.device.config import EdgeConfig
from edge_client.device.device import connect
from opensled.core.answer import Task
from opensled.core.messages import SamplingParams

# Goes on in the same way, so that a lookup finds what follows
TEXT = "".join(
    f"def get_{name}(self):\n    return self._{name}\n\n" for name in ("size", "name", "kind", "path")
)


class Crowd:
    """Devices that draft by lookup; each answers once as the crowd gathers, and then again and again in turns."""

    def __init__(self, server, names, cache, rounds=True, drafter="lookup", prompt=TEXT):
        self._server, self._names, self._cache, self._rounds = server, names, cache, rounds
        self._drafter, self._prompt = drafter, prompt
        self._gathered, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._gathered.wait(90), "the crowd did not gather"
        return self

    def __exit__(self, *error):
        self._leave.set()
        self._thread.join(30)

    async def _live(self):
        devices = [await self._device(name) for name in self._names]
        try:
            for device in devices:
                await self._ask(device)
            self._gathered.set()
            while self._rounds and not self._leave.is_set():
                await asyncio.gather(*(self._ask(device) for device in devices[:8]))
                await asyncio.sleep(0.2)
        finally:
            for device in devices:
                await device.close()

    async def _device(self, name):
        config = EdgeConfig(
            server=self._server, drafter=self._drafter, device_name=name, cache_dir=str(self._cache)
        )
        return await connect(config)

    async def _ask(self, device):
        params = SamplingParams(temperature=0, max_tokens=40)
        async for _ in device.answer(Task(self._prompt, params)):
            pass
