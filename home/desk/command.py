"""`opensled pair`: hand one device the home's authority and a token of its own; list and withdraw devices."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from home.desk.config import PairConfig, PairListConfig, PairRenameConfig, PairRevokeConfig
from home.discovery import PAIRING, announce
from home.pairing import PAIRING_PORT
from home.pairing.handover import new_code
from opensled.core.errors import NotFound, OpenSledError
from opensled.core.printable import visible_line
from opensled.net.address import host_port, join_host_port, listener
from opensled.net.own_addresses import best_host
from opensled.process.ending import interruptible

if TYPE_CHECKING:  # else a missing library would be an error of this module, not of the command
    from home.desk.desk import Paired
    from home.desk.home import Home

NONE_PAIRED = "no device is paired; run: opensled pair"


def pair(config: PairConfig) -> int:
    """Wait for one device, and pair it."""
    return asyncio.run(interruptible(_pair(config)))


async def _pair(config: PairConfig) -> int:
    from home.desk.desk import PairingDesk, PairingFailed
    from home.desk.home import Home, home_folder

    code = new_code()
    home = Home(home_folder(config.folder))
    if config.draft_key:
        home.name_signer(config.draft_key)
    desk = PairingDesk(home, code, config.server_port)
    try:
        server = await asyncio.start_server(desk.serve, sock=listener(config.listen), limit=1 << 14)
    except OSError as error:
        raise OpenSledError(
            f"cannot listen on {config.listen}: {error.strerror}; does another opensled pair run? "
            "--listen takes another port"
        ) from error
    port = server.sockets[0].getsockname()[1]
    try:
        async with announce(PAIRING, config.listen, port) if config.announce else nullcontext():
            _show(config, code, port)
            paired = await asyncio.wait_for(desk.outcome, 60 * config.minutes)
    except (asyncio.TimeoutError, TimeoutError):
        raise PairingFailed("the code has expired and no device came; run opensled pair again") from None
    except asyncio.CancelledError:
        if not config.json:
            print("\nthe code is withdrawn", flush=True)
        raise
    finally:
        server.close()  # its connections end with the event loop
    _tell(config, paired)
    return 0


def _show(config: PairConfig, code: str, port: int) -> None:
    """The code, and what to type on the device."""
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
        print(json.dumps({"paired": paired._asdict()}), flush=True)
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


def _required(folder: str) -> Home:
    if home := _existing(folder):
        return home
    raise NotFound(NONE_PAIRED)


def list_paired(config: PairListConfig) -> int:
    """The paired devices, one a line."""
    from home.desk.devices import paired_devices

    home = _existing(config.folder)
    devices = paired_devices(home) if home else []
    lines = [
        f"{device.name:20} "
        + (f"paired {device.when} from {device.address}" if device.when else "a line of your own")
        for device in devices
    ]
    return _answer(config, [device._asdict() for device in devices], *(lines or [NONE_PAIRED]))


def rename(config: PairRenameConfig) -> int:
    """Call a device otherwise."""
    from home.desk.devices import rename_device

    new = rename_device(_required(config.folder), config.name, config.new)
    words = f"{config.name} is called {new} now; a running server knows it so within a second"
    return _answer(config, {"renamed": config.name, "name": new}, words)


def revoke(config: PairRevokeConfig) -> int:
    """Withdraw the token of a device."""
    from home.desk.devices import revoke_device

    revoke_device(_required(config.folder), config.name)
    words = f"{config.name} is withdrawn; a running server refuses its next call"
    return _answer(config, {"revoked": config.name}, words)


def _answer(config: PairListConfig | PairRevokeConfig, facts: Any, *lines: str) -> int:
    """Print the facts for --json, else the lines; returns the exit code."""
    print(*([json.dumps(facts)] if config.json else map(visible_line, lines)), sep="\n")
    return 0
