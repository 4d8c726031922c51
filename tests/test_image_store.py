"""What a server keeps of pictures: by tenant, within limits, seen once; and what a flood of them does to others."""

import asyncio
import gc
import threading
import time
from contextlib import closing

import numpy as np
import pytest

from opensled.core.errors import InvalidRequest, MissingImage, Overloaded
from opensled.core.images import Image, digest_of
from tests.loops import cancelled
from tests.vision_models import picture
from tests.vision_world import image
from verify_server.vision.image_store import ImageStore

ROW_BYTES = 100


class Eyes:
    """Rows of ROW_BYTES bytes a picture; counts what it looks at, and may be slow."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.looked, self.seconds, self.threads = 0, seconds, set()

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        self.looked += 1
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        return np.full((4, ROW_BYTES // 4), pixels[0, 0, 0], np.uint8)


async def test_a_picture_is_seen_once_for_all_who_ask_at_the_same_time():
    eyes = Eyes(0.05)
    with closing(ImageStore(eyes)) as store:
        first = await asyncio.gather(*(store.look_up(image(1), "kitchen") for _ in range(5)))
        later = await store.look_up(image(1).named, "kitchen")
    assert eyes.looked == 1 and {id(each) for each in first} == {id(later)}


async def test_a_device_that_goes_in_the_middle_finds_its_picture_when_it_comes_back():
    eyes = Eyes(0.05)
    with closing(ImageStore(eyes)) as store:
        gone = asyncio.ensure_future(store.look_up(image(1), "kitchen"))
        await asyncio.sleep(0.01)
        await cancelled(gone)
        await store.look_up(image(1), "kitchen")
    assert eyes.looked == 1


async def test_a_tenant_learns_nothing_of_the_pictures_of_another():
    with closing(ImageStore(Eyes())) as store:
        await store.look_up(image(1), "kitchen")
        with pytest.raises(MissingImage) as caught:
            await store.look_up(image(1).named, "cellar")
        assert caught.value.field == "images"


async def test_a_file_of_another_digest_is_refused_and_harms_nobody():
    lie = Image(digest_of(picture(1)), picture(2))
    with closing(ImageStore(Eyes())) as store:
        with pytest.raises(InvalidRequest, match="digest"):
            await store.look_up(lie, "kitchen")
        assert (await store.look_up(image(1), "kitchen")).digest == lie.digest


async def test_pictures_that_were_used_longest_ago_go_first_and_of_the_tenant_that_has_most():
    with closing(ImageStore(Eyes(), max_kept=3 * ROW_BYTES)) as store:
        for seed in range(3):
            await store.look_up(image(seed), "kitchen")
        await store.look_up(image(0), "kitchen")
        await store.look_up(image(9), "cellar")
        found = []
        for seed, tenant in ((0, "kitchen"), (1, "kitchen"), (2, "kitchen"), (9, "cellar")):
            try:
                await store.look_up(image(seed).named, tenant)
                found.append(seed)
            except MissingImage:
                pass
    assert found == [0, 2, 9]


async def test_sessions_that_hold_too_many_turn_new_pictures_away_until_they_end():
    with closing(ImageStore(Eyes(), max_kept=ROW_BYTES, max_held=2 * ROW_BYTES)) as store:
        held = [await store.look_up(image(seed), "kitchen") for seed in range(3)]
        assert store.held == 3 * ROW_BYTES
        with pytest.raises(Overloaded):
            await store.look_up(image(7), "kitchen")
        assert await store.look_up(image(2).named, "kitchen") is held[2], (
            "what is known is served all the same"
        )
        held.clear()
        gc.collect()
        await store.look_up(image(7), "kitchen")


async def test_a_flood_of_pictures_of_one_tenant_leaves_another_its_thread():
    with closing(ImageStore(Eyes(0.1))) as store:
        flood = [asyncio.ensure_future(store.look_up(image(seed), "flood")) for seed in range(30)]
        await asyncio.sleep(0)
        began = time.monotonic()
        await store.look_up(image(99), "kitchen")
        waited = time.monotonic() - began
        done = sum(each.done() for each in flood)
        await cancelled(*flood)
    assert done < 15 and waited < 1.5, "one thread of two is the most that a tenant has"
