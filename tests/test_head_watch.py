"""A gateway notices that its Ray is gone. With Ray: tests/test_cluster.py."""

import asyncio

import pytest

from scheduler.cluster import head_watch
from scheduler.cluster.head_watch import ray_lost


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(head_watch, "LOOK_S", 0.05)


async def test_a_head_that_listens_is_there_and_one_that_was_away_for_a_moment_too():
    async def listen(reader, writer):
        writer.close()

    node = await asyncio.start_server(listen, "127.0.0.1", 0)
    head = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = head.sockets[0].getsockname()[1]
    watching = asyncio.ensure_future(
        ray_lost([f"127.0.0.1:{port}", f"127.0.0.1:{node.sockets[0].getsockname()[1]}"])
    )
    await asyncio.sleep(0.3)
    assert not watching.done()
    head.close()
    await asyncio.sleep(0.1)
    head = await asyncio.start_server(listen, "127.0.0.1", port)
    await asyncio.sleep(0.5)
    assert not watching.done()
    head.close()
    assert await asyncio.wait_for(watching, 20) == f"127.0.0.1:{port}"
    node.close()
