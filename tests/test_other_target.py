"""A server that serves another target than before: the device says so, and goes on with the new one by itself."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import AsyncMock, patch

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


@asynccontextmanager
async def changeable(*fits):
    """A device on a server, and a way to give the server another name and vocabulary."""
    async with serving() as (manager, address), linked(address) as link:
        info = await link.describe()
        device = Device(link, info, TOKENIZER, PickyFactory(*fits), FixedLength(4))

        def change(name, fingerprint):
            link.describe = AsyncMock(return_value=replace(info, model_id=name, fingerprint=fingerprint))
            manager.model_id, manager.inputs.text.fingerprint = name, fingerprint

        try:
            with patch.object(served_target.tokenizers, "load", AsyncMock(return_value=TOKENIZER)):
                yield device, change
        finally:
            await device.close()


async def ids(device):
    return [id for chunk in await read(device) for id in chunk.token_ids]


EXPECTED = continuation(PROMPT, GREEDY.max_tokens)
SAME, OTHER = "f" * 64, "e" * 64


@pytest.mark.parametrize(("fingerprint", "created"), [(SAME, 1), (OTHER, 2)], ids=["same", "other"])
async def test_a_device_goes_on_with_a_target_that_its_drafts_fit(fingerprint, created):
    async with changeable(SAME, OTHER) as (device, change):
        assert await ids(device) == EXPECTED
        change("new", fingerprint)
        with pytest.raises(Unreachable, match="now serves new"):
            await ids(device)
        assert device.info.model_id == "new" and device.info.fingerprint == fingerprint
        assert await ids(device) == EXPECTED
        assert device._factory.created == created, "drafters of another vocabulary are replaced"
        assert device.drafters_busy == 0


async def test_a_device_waits_for_a_target_that_its_drafts_fit():
    async with changeable(SAME) as (device, change):
        change("foreign", OTHER)
        for _ in range(2):
            with pytest.raises(Unreachable, match="no drafts for foreign"):
                await ids(device)
        change("fake", SAME)
        assert await ids(device) == EXPECTED


async def test_requests_at_once_meet_the_new_target_once():
    async with changeable(SAME) as (device, change):
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
