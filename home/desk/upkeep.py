"""A server that runs for years renews its certificate in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from opensled.core.errors import UsageError

if TYPE_CHECKING:
    from verify_server.options.serve_config import ServeConfig

log = logging.getLogger(__name__)

DAY_SECONDS = 86_400.0


@asynccontextmanager
async def home_kept(config: ServeConfig, every: float = DAY_SECONDS) -> AsyncIterator[None]:
    """While inside, the certificate of --paired is looked at each `every` seconds, and renewed when it is old."""
    looking = asyncio.ensure_future(_look(config, every)) if config.paired else None
    try:
        yield
    finally:
        if looking:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def _look(config: ServeConfig, every: float) -> None:
    from home.desk.home import Home, home_folder

    while True:
        await asyncio.sleep(every)
        try:
            await asyncio.to_thread(Home, home_folder(config.folder))
        except UsageError as error:
            log.warning("the certificate of this home was not looked at: %s", error)
