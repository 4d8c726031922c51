"""`python -m tests.starved_api LIMIT`: the API with LIMIT file descriptors, until it is killed.

Its log is JSON: each line says when it was written.
"""

import asyncio
import resource
import sys

from http_api.app import build_app
from http_api.listening import listen
from http_api.server import ApiServer
from opensled.process import logs
from tests.fake_backend import FakeBackend


def main(limit: int) -> None:
    logs.configure(as_json=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    ending = asyncio.Event()
    with listen("127.0.0.1:0") as listener:
        print(listener.getsockname()[1], flush=True)
        asyncio.run(ApiServer(build_app(FakeBackend(), ending=ending), ending).run(listener))


if __name__ == "__main__":
    main(int(sys.argv[1]))
