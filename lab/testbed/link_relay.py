"""A link in user space: a TCP relay that delivers bytes when the profile's link would have.

    python -m lab.testbed.link_relay --profile lte --to 10.0.0.1:7411 --listen 127.0.0.1:7500 [--dilation 10]
        [--outage-every S --outage S] [--reset-every S]

Clients of the relay are on the device's side. Both peers see plain TCP: bytes whole and in order, late as
link_model.py says, times the dilation. All connections share the link's rate. A loss is a stall, for that is what TCP
makes of it. On top, chaos: outages in which nothing arrives, and resets of all connections.

A read from a peer is paused while as much is under way as two slow round trips carry, as TCP's windows would do it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from hw_profiles import catalog
from hw_profiles.profiles import LinkProfile
from lab.testbed.link_connection import Connection, End
from lab.testbed.link_state import Chaos, LinkState
from opensled.core.errors import OpenSledError
from opensled.net.address import host_port, join_host_port


class Relay(LinkState):
    """A link in front of `to`; use it in an `async with`."""

    def __init__(
        self,
        profile: LinkProfile,
        to: str,
        *,
        dilation: float = 1.0,
        seed: int = 0,
        chaos: Chaos | None = None,
        listen: str = "127.0.0.1:0",
        source: str = "",
    ) -> None:
        """`to`, `listen`: HOST:PORT; `dilation`: real seconds for an emulated one. Raises UsageError.

        `source`: address of this machine that the server sees as the device's; "" = any.
        """
        super().__init__(profile, dilation, seed, chaos or Chaos())
        self._source = source
        self.address = ""  # HOST:PORT to connect to, once it runs
        self.to, self._listen = host_port(to), host_port(listen)
        self.connections: set[Connection] = set()

    async def __aenter__(self) -> Relay:
        self.start()
        host, port = self._listen
        try:
            self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        except OSError:
            self.stop()
            raise
        self.address = join_host_port(host, self._server.sockets[0].getsockname()[1])
        if self.chaos.reset_every:
            self._reset_after(self.chaos.reset_every)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        await asyncio.sleep(0)  # connections accepted just now join, and are reset with the others
        self.reset()
        self.stop()
        await self._server.wait_closed()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop

    def _accept(self) -> End:
        return Connection(self, self.to, self.connections, self._source).device

    def reset(self) -> None:
        """RST to both ends of every connection."""
        for connection in tuple(self.connections):
            connection.reset()

    def become(self, profile: LinkProfile) -> None:
        """From now on this is a link of another profile, also for the connections that are open."""
        super().become(profile)
        for connection in self.connections:
            connection.change_link()

    def _reset_after(self, when: float) -> None:
        def strike() -> None:
            self.reset()
            self._reset_after(when + self.chaos.reset_every)

        self.at(when, strike)


async def _serve(relay: Relay) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with relay:
        print(f"listening on {relay.address}", flush=True)
        await stop.wait()


def _relay(arguments: Sequence[str] | None) -> Relay:
    parser = argparse.ArgumentParser("python -m lab.testbed.link_relay", description=__doc__)
    parser.add_argument("--profile", required=True, metavar="ID", help="a link profile's name or file")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="the server's side")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="the device's side")
    parser.add_argument("--dilation", type=float, default=1.0, metavar="D", help="real per emulated second")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    for name, meaning in (
        ("outage-every", "from one outage to the next"),
        ("outage", "length of an outage"),
        ("reset-every", "from one reset of all connections to the next"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=0.0, metavar="S", help=f"emulated seconds {meaning}"
        )
    given = parser.parse_args(arguments)
    chaos = Chaos(given.outage_every, given.outage, given.reset_every)
    options = {"dilation": given.dilation, "seed": given.seed}
    return Relay(catalog.link(given.profile), given.to, **options, chaos=chaos, listen=given.listen)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the top of this file."""
    try:
        asyncio.run(_serve(_relay(arguments)))
    except OpenSledError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"cannot listen there: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
