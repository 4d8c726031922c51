"""The certificate and the tokens of `opensled serve --paired`; a server that runs for years renews the one in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from opensled.core.errors import UsageError

if TYPE_CHECKING:
    from verify_server.options.serve_config import ServeConfig

log = logging.getLogger(__name__)

DAY_SECONDS = 86_400.0


def with_home(config: ServeConfig) -> ServeConfig:
    """`config` with the files of --folder in their places, if it says --paired; they are made where they are missing.

    Raises UsageError.
    """
    if not config.paired:
        if config.folder:
            raise UsageError("--folder is the folder of paired devices: add --paired, or leave it out")
        return config
    given = [name for name in ("tls_cert", "tls_key", "tokens") if getattr(config, name)]
    if given:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--paired brings its own certificate and tokens: leave out {flags}, or --paired")
    from home.desk.home import Home, home_folder

    home = Home(home_folder(config.folder))
    return replace(config, tls_cert=str(home.cert), tls_key=str(home.key), tokens=str(home.tokens))


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
