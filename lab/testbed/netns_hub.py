"""Three tiers in network namespaces: the target in a cloud, a relay on a hub behind a wide-area link, and devices that
reach the hub on their links at home."""

from collections.abc import Callable, Mapping

import httpx

from lab.testbed.namespaces import inside, namespace
from lab.testbed.netns_machines import SERVE, VERIFIER_PORT, Testbed
from lab.testbed.processes import Process
from opensled.core.errors import OpenSledError
from opensled.metrics.registry import PREFIX

# Device profile -> link profile, as in docker-compose.yml.
HOME_DEVICES = {"pi-4": "wifi-busy", "pi-5": "wifi-good", "orin-nano": "ethernet", "laptop-cpu": "wifi-mesh"}
HUB, WIDE_AREA = "agx-orin", "wan-80"  # profiles of the hub, and of its link to the cloud
HUB_MODEL = "tiny-hub"
METRICS = "127.0.0.1:9412"  # of the hub
FALLBACKS = {
    "orin-nano": "5g",
    "laptop-cpu": "lte",
}  # these reach the cloud without the hub as well, on such a link
# Numbers of cables, beside those of devices to the hub: from 0
CLOUD_CABLE, FIRST_FALLBACK = 63, 32


class HubTestbed(Testbed):
    """See `Testbed`; the server that devices ask is a relay."""

    devices = HOME_DEVICES

    @property
    def servers(self) -> Mapping[str, Callable[[], None]]:
        """See `Testbed.servers`."""
        return {"the cloud": self.restart_cloud, "the hub": self.restart_hub}

    def start_servers(self) -> None:
        """See `Testbed.start_servers`."""
        self._far = self._stack.enter_context(namespace(f"{self._name}-cloud"))
        self._cloud = self._start_cloud()
        self._upstream = self.link(self._near, self._far, WIDE_AREA, CLOUD_CABLE)
        self._held = self.confine(f"{self._name}-hub", HUB)
        self._hub = self._start_hub()

    def _start_cloud(self) -> Process:
        return self.start([*SERVE, "--listen", f"0.0.0.0:{VERIFIER_PORT}"], self._far)

    def _start_hub(self) -> Process:
        flags = ("--upstream", self._upstream, "--model", HUB_MODEL, "--threads", "1", "--metrics", METRICS)
        listen = f"0.0.0.0:{VERIFIER_PORT}"
        with inside(self._near):
            hub = Process(["relay", *flags, "--listen", listen, "--insecure"], isolated=True)
        self._held.add(hub.process.pid)
        self._stack.enter_context(hub).wait_ready(300)
        return hub

    def flags_of(self, device: str, space: str, number: int) -> tuple[str, ...]:
        """See `Testbed.flags_of`."""
        if device not in FALLBACKS:
            return ()
        return ("--fallback", self.link(space, self._far, FALLBACKS[device], FIRST_FALLBACK + number))

    def restart_cloud(self) -> None:
        """SIGKILL, and a new one that knows nothing of the old one's sequences; the hub stays."""
        self._cloud.kill()
        self._cloud = self._start_cloud()

    def restart_hub(self) -> None:
        """SIGKILL, and a new one; the cloud stays."""
        self._hub.kill()
        self._hub = self._start_hub()

    def described(self) -> list[str]:
        """See `Testbed.described`."""
        hub = f"the hub, {HUB} with model {HUB_MODEL}, behind {WIDE_AREA}: {self._held.how}"
        past = ", ".join(f"{device} behind {link}" for device, link in FALLBACKS.items())
        return [*super().described(), hub, f"past the hub, if it is gone: {past}"]

    def vetted(self) -> tuple[int, int]:
        """Vetted tokens of the hub since its start: those that the cloud has confirmed, and those taken back."""
        try:
            with inside(self._near):
                rows = httpx.get(f"http://{METRICS}/metrics", trust_env=False).text.splitlines()
        except httpx.HTTPError as error:
            raise OpenSledError(f"the hub's metrics cannot be read: {error}") from error
        values = dict(row.split()[:2] for row in rows if not row.startswith("#"))
        names = ("relay_confirmed_tokens_total", "relay_taken_back_tokens_total")
        confirmed, taken_back = (int(float(values[PREFIX + name])) for name in names)
        return confirmed, taken_back
