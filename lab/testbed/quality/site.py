"""A real server and, for each rule, a device of its own that asks it.

Block lengths are fixed, the server waits for every draft and prompts are computed before the clock runs: so the rules
differ in nothing but what they accept, and a second run gives almost the same texts. (Almost: the first token may come
before the first draft, and where blocks begin matters to a rule that looks ahead.)
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from edge_client.device.config import DeviceConfig
from edge_client.device.device import Device, connect
from lab.testbed.processes import QUIET, Process, settings
from lab.testbed.quality.config import QualityConfig
from verify_server.options.serve_config import ServeConfig
from verify_server.rules import RULES


def serve_words(config: QualityConfig) -> list[str]:
    """The command line of the server. Raises UsageError for a rule that is not known."""
    options = {
        "model": config.model,
        "engine": config.engine,
        "threads": config.threads,
        "listen": "127.0.0.1:0",
        "policy": "fcfs",
        "draft-wait": "inf",
        "loose-rules": ",".join(_loose(config.rules)),
    }
    if config.pivots:
        options["pivots"] = config.pivots
    return ["serve", *(word for name, value in options.items() for word in (f"--{name}", str(value))), *QUIET]


def limits(config: QualityConfig) -> dict[str, str]:
    """The variables of the server."""
    return settings(max_draft=max(ServeConfig.max_draft, config.draft_length))


def _loose(rules: Sequence[str]) -> list[str]:
    names = dict.fromkeys(rule.partition(":")[0] for rule in rules)
    return [name for name in names if not getattr(RULES.get(name), "lossless", True)]


@asynccontextmanager
async def site(config: QualityConfig) -> AsyncIterator[dict[str, Device]]:
    """The devices by rule, while the server runs. Raises OpenSledError if it or a device does not start."""
    async with AsyncExitStack() as stack:
        server = Process(serve_words(config), isolated=True, environment=limits(config))
        address = stack.enter_context(server).wait_ready()
        devices = {}
        for rule in config.rules:
            devices[rule] = await connect(_device(config, address, rule), config.users)
            stack.push_async_callback(devices[rule].close)
        yield devices


def _device(config: QualityConfig, address: str, rule: str) -> DeviceConfig:
    """Without trees, for loose rules take none."""
    return DeviceConfig(
        server=address,
        rule=rule,
        drafter=config.drafter,
        draft_model=config.draft_model,
        draft_length=config.draft_length,
        draft_tree=0,
        stop="fixed",
        threads=1,
    )
