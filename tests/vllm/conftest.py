"""Servers that tests share, and the texts that are right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tests.vllm.answers import GREEDY, KINDS, QUESTIONS, WARM, Answer, by_torch, prompt_of
from tests.vllm.servers import SERVERS, Server, serving

NO_SERVER = SimpleNamespace(params={})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one server follow each other, so that it starts once."""
    names = ["", *SERVERS]
    items.sort(key=lambda item: names.index(getattr(item, "callspec", NO_SERVER).params.get("server", "")))


@pytest.fixture(scope="session")
def _running() -> Iterator[tuple[ExitStack, list[Server]]]:
    """The one that runs, and what stops it."""
    with ExitStack() as stack:
        yield stack, []


@pytest.fixture
def server(
    request: pytest.FixtureRequest, _running: tuple, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """Of SERVERS, by the name that is the parameter; it knows what its users were answered without devices."""
    stack, found = _running
    if not found or found[0].name != request.param:
        stack.close()
        place = tmp_path_factory.mktemp("server")
        found[:] = [stack.enter_context(serving(place, request.param, SERVERS[request.param]))]
        found[0].alone.update(found[0].ask_all())
    return found[0]


@pytest.fixture(scope="session")
def known() -> dict[str, list[Answer]]:
    """Answers for devices, by engine torch."""
    twice = [*QUESTIONS, *reversed(QUESTIONS)]
    asked = {
        "8, greedy": [Answer(prompt_of(question), GREEDY) for question in QUESTIONS],
        "8, T = 0.8": [Answer(prompt_of(question), WARM) for question in QUESTIONS],
        "16 of eight kinds": [
            Answer(prompt_of(question), **kind) for question, kind in zip(twice, [*KINDS.values()] * 2)
        ],
    }
    return {name: [by_torch(answer) for answer in answers] for name, answers in asked.items()}
