"""Table [limits] of the configuration file: it holds for real requests, of a server and of a relay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.testbed.processes import Process
from opensled.cli.config import options
from opensled.core.messages import Failure, Open, Opened, SamplingParams
from relay.config import RelayConfig
from tests.serving import first_reply, linked
from verify_server.options.limits_config import LimitsConfig
from verify_server.options.serve_config import ServeConfig

SERVE = ("serve", "--engine", "tests.fake_target:load", "--model", "fake", "--listen", "127.0.0.1:0")
FILE = "[serve]\nserver-drafter = 'none'\n\n[limits]\ntenant-prompt = 3\ntenant_sessions = 8\nmax-draft = 5\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("etc") / "server.toml"
    file.write_text(FILE)
    with Process(SERVE, isolated=True, environment={"OPENSLED_CONFIG": str(file)}) as process:
        yield process.wait_ready()


async def opened(address: str, prompt: tuple[int, ...]) -> Opened | Failure:
    async with linked(address) as link:
        return await first_reply(link, Open(prompt, SamplingParams(temperature=0, max_tokens=2)))


def test_a_request_meets_the_limits_of_the_file(address: str) -> None:
    taken = asyncio.run(opened(address, (3, 1, 4)))
    assert isinstance(taken, Opened) and taken.limits.max_draft == 5
    refused = asyncio.run(opened(address, (3, 1, 4, 1)))
    assert isinstance(refused, Failure) and "your tenant may send at most 3" in str(refused.error())


def test_what_tenants_and_clients_may_take_has_no_flag() -> None:
    assert {item.table for item in options(LimitsConfig)} == {"limits"}
    limits = {item.name for item in options(LimitsConfig)}
    assert limits <= {item.name for item in options(ServeConfig) if not item.flags}


def test_a_relay_holds_them_too() -> None:
    given = {item.name: item.default + 1 for item in options(LimitsConfig) if item.kind is int}
    serving = RelayConfig(**given, shared_address=True).serving
    assert {name: getattr(serving, name) for name in given} == given and serving.shared_address
