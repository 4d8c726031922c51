"""`opensled pair`: hand one device the home's authority and a token of its own; list and withdraw devices."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from home.desk.config import PairConfig, PairListConfig, PairRenameConfig, PairRevokeConfig
from home.pairing import PAIRING_PORT
from home.pairing.code import new_code
from opensled.core.errors import NotFound, OpenSledError, UsageError
from opensled.core.printable import visible_line
from opensled.net.address import host_port, join_host_port, listener

if TYPE_CHECKING:
    from home.desk.desk import Paired, PairingDesk
    from home.desk.home import Home
    from verify_server.options.serve_config import ServeConfig


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


def pair(config: PairConfig) -> int:
    """Wait for one device, and pair it."""
    return asyncio.run(_pair(config))


async def _pair(config: PairConfig) -> int:
    from home.desk.desk import PairingDesk, PairingFailed
    from home.desk.home import Home, home_folder

    code = new_code()
    home = Home(home_folder(config.folder))
    if config.draft_key:
        home.name_signer(config.draft_key)
    desk = PairingDesk(home, code, config.server_port)
    server = await _listening(desk, config.listen)
    port = server.sockets[0].getsockname()[1]
    try:
        async with _announce(config, port):
            _show(config, code, port)
            paired = await asyncio.wait_for(desk.outcome, 60 * config.minutes)
    except (asyncio.TimeoutError, TimeoutError):
        raise PairingFailed("the code has expired and no device came; run opensled pair again") from None
    except asyncio.CancelledError:
        if not config.json:
            print("\nthe code is withdrawn", flush=True)
        raise
    finally:
        server.close()
        await desk.close()
    _tell(config, paired)
    return 0


async def _listening(desk: PairingDesk, listen: str) -> asyncio.Server:
    try:
        return await asyncio.start_server(desk.take, sock=listener(listen), limit=1 << 14)
    except OSError as error:
        raise OpenSledError(
            f"cannot listen on {listen}: {error.strerror}; does another opensled pair run? --listen takes another port"
        ) from error


def _announce(config: PairConfig, port: int) -> AbstractAsyncContextManager[None]:
    if not config.announce:
        return nullcontext()
    from home.discovery import PAIRING, announce

    return announce(PAIRING, config.listen, port)


def _show(config: PairConfig, code: str, port: int) -> None:
    """The code, and what to type on the device."""
    from opensled.net.own_addresses import best_host

    host = best_host(config.listen)
    place = host if port == PAIRING_PORT else join_host_port(host, port)
    command = f"opensled edge --pair {code} {place}"
    expires = time.time() + 60 * config.minutes
    if config.json:
        listening = join_host_port(host_port(config.listen)[0], port)
        facts = {"code": code, "expires": round(expires), "listening": listening, "command": command}
        print(json.dumps(facts), flush=True)
        return
    print(f"pairing code {code}, for one device, until {time.strftime('%H:%M', time.localtime(expires))}")
    print(f"type on the device:\n\n    {command}\n")
    print("waiting for the device; Ctrl-C withdraws the code", flush=True)


def _tell(config: PairConfig, paired: Paired) -> None:
    if config.json:
        print(json.dumps({"paired": asdict(paired)}), flush=True)
        return
    print(visible_line(f"paired {paired.name} ({paired.address}), which calls this server {paired.server}"))
    if paired.renewed:
        print(
            "the server's certificate was written anew; a running opensled serve --paired takes it within a second"
        )
    print("next, if it does not run yet: opensled serve --paired --model smollm2 --listen 0.0.0.0:"
          f"{config.server_port}")  # fmt: skip


def _existing(folder: str) -> Home | None:
    """The home of --folder, None where nothing was paired yet: looking makes no authority."""
    from home.desk.home import Home, home_folder

    found = home_folder(folder)
    return Home(found) if (found / "tokens.txt").exists() else None


def list_paired(config: PairListConfig) -> int:
    """The paired devices, one a line."""
    from home.desk.devices import paired_devices

    home = _existing(config.folder)
    devices = paired_devices(home) if home else []
    if config.json:
        print(json.dumps([device._asdict() for device in devices]))
        return 0
    for device in devices:
        how = f"paired {device.when} from {device.address}" if device.when else "a line of your own"
        print(visible_line(f"{device.name:20} {how}"))
    if not devices:
        print("no device is paired; run: opensled pair")
    return 0


def rename(config: PairRenameConfig) -> int:
    """Call a device otherwise."""
    from home.desk.devices import rename_device

    home = _existing(config.folder)
    if home is None:
        raise NotFound("no device is paired; run: opensled pair")
    new = rename_device(home, config.name, config.new)
    words = f"{config.name} is called {new} now; a running server knows it so within a second"
    print(json.dumps({"renamed": config.name, "name": new}) if config.json else visible_line(words))
    return 0


def revoke(config: PairRevokeConfig) -> int:
    """Withdraw the token of a device."""
    from home.desk.devices import revoke_device

    home = _existing(config.folder)
    if home is None:
        raise NotFound("no device is paired; run: opensled pair")
    revoke_device(home, config.name)
    if config.json:
        print(json.dumps({"revoked": config.name}))
    else:
        print(visible_line(f"{config.name} is withdrawn; a running server refuses its next call"))
    return 0
