"""A server that serves another target than before: the device says so, and goes on with the new one by itself."""

import asyncio
from dataclasses import replace

import pytest

from edge_client.device import served_target
from edge_client.device.device import Device
from edge_client.lengths.fixed import FixedLength
from opensled.core.errors import Unreachable, VocabularyMismatch
from tests.devices import TOKENIZER, OracleFactory, read
from tests.fakes import continuation
from tests.serving import GREEDY, PROMPT, linked, serving
from tests.system import until


class PickyFactory(OracleFactory):
    """Drafts for the vocabularies in `fits`."""

    def __init__(self, *fits):
        super().__init__()
        self.fits = fits

    def fit(self, info, tokenizer=None):
        if info.fingerprint not in self.fits:
            raise VocabularyMismatch(f"no drafts for {info.model_id}")


@pytest.fixture
def changed(monkeypatch):
    """A device on a server, and a way to give the server another name and vocabulary."""

    async def load(info, fetch, cache):
        return TOKENIZER

    monkeypatch.setattr(served_target.tokenizers, "load", load)

    async def run(scenario, *fits):
        async with serving() as (manager, address), linked(address) as link:
            info = await link.describe()
            device = Device(link, info, TOKENIZER, PickyFactory(*fits), FixedLength(4))

            def change(name, fingerprint):
                async def describe():
                    return replace(info, model_id=name, fingerprint=fingerprint)

                link.describe = describe
                manager.model_id, manager.inputs.text.fingerprint = name, fingerprint

            try:
                await scenario(device, change)
            finally:
                await device.close()

    return run


async def ids(device):
    return [id for chunk in await read(device) for id in chunk.token_ids]


EXPECTED = continuation(PROMPT, GREEDY.max_tokens)
SAME, OTHER = "f" * 64, "e" * 64


@pytest.mark.parametrize(("fingerprint", "created"), [(SAME, 1), (OTHER, 2)], ids=["same", "other"])
def test_a_device_goes_on_with_a_target_that_its_drafts_fit(changed, fingerprint, created):
    async def scenario(device, change):
        assert await ids(device) == EXPECTED
        change("new", fingerprint)
        with pytest.raises(Unreachable, match="now serves new"):
            await ids(device)
        assert device.info.model_id == "new" and device.info.fingerprint == fingerprint
        assert await ids(device) == EXPECTED
        assert device._factory.created == created, "drafters of another vocabulary are replaced"
        assert device.drafters_busy == 0

    asyncio.run(changed(scenario, SAME, OTHER))


def test_a_device_waits_for_a_target_that_its_drafts_fit(changed):
    async def scenario(device, change):
        change("foreign", OTHER)
        for _ in range(2):
            with pytest.raises(Unreachable, match="no drafts for foreign"):
                await ids(device)
        change("fake", SAME)
        assert await ids(device) == EXPECTED

    asyncio.run(changed(scenario, SAME))


def test_requests_at_once_meet_the_new_target_once(changed):
    async def scenario(device, change):
        change("new", SAME)
        meetings, asked = [], []
        link, describe, connect = device._link, device._link.describe, device._link.connect

        def connected():
            asked.append(1)
            return connect()

        async def counted():
            meetings.append(1)
            await until(lambda: len(asked) >= 3)  # all of them ask for the old target
            return await describe()

        link.describe, link.connect = counted, connected
        errors = await asyncio.gather(ids(device), ids(device), ids(device), return_exceptions=True)
        assert [type(error) for error in errors] == [Unreachable] * 3 and len(meetings) == 1

    asyncio.run(changed(scenario, SAME))
