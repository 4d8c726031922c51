"""The process of every shard but the first: it loads its part of the target, and computes what the first one computes.

`python -m verify_server.engine.shard_worker SOCKET RANK SIZE MEETING`, started by shard_links.py; SOCKET is inherited.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from opensled import logs
from opensled.errors import OpenSledError
from verify_server.engine.shard_links import BEAT, LOAD, Beat, Call, Failed, Ready

log = logging.getLogger(__name__)


class Follower:
    """Computes until the first shard is gone."""

    def __init__(self, connection: Connection, rank: int, size: int, meeting: Path) -> None:
        self._connection, self._rank, self._size, self._meeting = connection, rank, size, meeting
        self._engine: Any = None
        self._calls = 0
        self._sending = threading.Lock()

    def run(self) -> None:
        """Never returns: another thread may wait in native code for a shard that is gone."""
        threading.Thread(target=self._beat, name="signs of life", daemon=True).start()
        try:
            while True:
                self._obey(self._connection.recv())
                self._calls += 1
        except (EOFError, OSError):  # the first shard is gone
            self._leave(0)
        except BaseException as error:
            log.exception("shard %d of %d ends", self._rank, self._size)
            code = error.code if isinstance(error, OpenSledError) else OpenSledError.code
            self._say(
                Failed(code, str(error) if code != OpenSledError.code else f"{type(error).__name__}: {error}")
            )
            self._leave(1)

    def _obey(self, call: Call) -> None:
        if call.method == LOAD:
            self._load(*call.arguments)
            return
        try:
            getattr(self._engine, call.method)(*call.arguments)
        except OpenSledError as error:
            log.info("%s in all shards: %s", call.method, error)

    def _load(self, threads: int, options: dict[str, Any]) -> None:
        from verify_server.engine import loading, shard, torch_engine

        place = shard.Shard(self._rank, self._size)
        loading.use_threads(threads)
        if self._engine is None:
            shard.join(place, self._meeting, loading.pick_device(options["device"]))
        self._engine = torch_engine.load(**options, shard=place)
        self._say(Ready())

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            self._say(Beat(self._calls))
            pause.wait(BEAT)

    def _say(self, message: Beat | Ready | Failed) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:  # the first shard is gone
            self._leave(0)

    def _leave(self, status: int) -> NoReturn:
        """At once, and with the folder of the meeting: no other process may be left to remove it."""
        shutil.rmtree(self._meeting.parent, ignore_errors=True)
        os._exit(status)


if __name__ == "__main__":
    logs.configure("error")
    number, rank, size = map(int, sys.argv[1:4])
    Follower(Connection(number), rank, size, Path(sys.argv[4])).run()
