"""Whom each command calls: the table in docs/security.md against what its processes look up and connect to."""

import os
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
TABLE = PAGE.partition("| command | calls |\n|---|---|\n")[2].partition("\n\n")[0]
# Loaded before all other libraries: notes what Python, pip and gRPC look up and connect to.
NOTING = r"""
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
static void note(const char *host, const char *port) {
    FILE *file = fopen(getenv("NOTED"), "a");
    fprintf(file, "%s%s\n", host, port);
    fclose(file);
}
int getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted, struct addrinfo **found) {
    if (host) note(host, "");
    return ((int (*)())dlsym((void *)-1, "getaddrinfo"))(host, port, wanted, found);
}
int connect(int fd, const struct sockaddr *to, socklen_t size) {
    char host[99], port[9] = ":";
    int kind = 0;
    socklen_t width = sizeof kind;
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &width);
    if (kind == SOCK_STREAM && to->sa_family != AF_UNIX && !getnameinfo(to, size, host, 99, port + 1, 8, 3))
        note(host, port);
    return ((int (*)())dlsym((void *)-1, "connect"))(fd, to, size);
}
"""
SERVE = "--engine llamacpp --threads 1 --listen 127.0.0.1:0"
# What the table calls those who are called -> a name that nobody has, or the key of `places`
CALLED = {
    "package index": "index.invalid",
    "model hub": "hub.invalid",
    "the server": "SERVER",
    "`--draft-url`": "DRAFTS",
    "`--metrics`": "METRICS",
}
OWN = {"127.0.0.1", "localhost", "0.0.0.0", "::"}  # looked up, and no connection
# A command, which ends by itself or with `...` is ended once it is ready, and whom it calls by the table
CALLS = {
    "pull smollm2": ["package index"],
    "pull Some-Org/Small": ["model hub"],
    "run smollm2": ["package index"],
    "run Some-Org/Small": ["model hub"],
    "demo --model smollm2": ["package index"],
    "serve Some-Org/Small --engine torch --listen 127.0.0.1:0": ["model hub"],
    "generate Hi --max-tokens 2 --server SERVER": ["the server"],
    "chat --server SERVER": ["the server"],
    "doctor --server SERVER": ["the server"],
    "profile calibrate --server SERVER --out FOLDER/profile": ["the server"],
    f"drafts pull --server SERVER --signer local:{'0' * 64}": ["the server"],
    "top --once --metrics METRICS": ["`--metrics`"],
    f"serve tiny {SERVE} ...": [],
    f"relay --model tiny --upstream SERVER {SERVE} ...": ["the server"],
    "edge --server SERVER --draft-url http://DRAFTS --http 127.0.0.1:0 ...": ["the server", "`--draft-url`"],
    "profile list": [],
    "models list": [],
    "config init": [],
    "profile detect": [],
    "service status": [],
    "kept list --keep-text FOLDER": [],
    "pair list --folder FOLDER": [],
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """By its name in CALLS: a server and its metrics, an address where nothing listens, and an own folder."""
    folder = tmp_path_factory.mktemp("noting")
    (folder / "note.c").write_text(NOTING)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / "note.so", folder / "note.c"], check=True)
    found = {name: f"127.0.0.1:{free_port()}" for name in ("METRICS", "DRAFTS")}
    words = ["serve", "tiny", *SERVE.split(), "--metrics", found["METRICS"]]
    with Process(words, isolated=True) as server:
        yield {**found, "SERVER": server.wait_ready(), "FOLDER": str(folder)}


@pytest.mark.parametrize("words", CALLS)
def test_a_command_calls_whom_the_table_names(words, places):
    verb = max((verb for verb in VERBS if words.startswith(verb)), key=len)
    row = next((row for row in TABLE.splitlines() if f"`{verb}`" in row.partition(" | ")[0]), "")
    assert all(name in row.partition(" | ")[2] for name in CALLS[words])
    expected = {places.get(CALLED[name], CALLED[name]) for name in CALLS[words]}
    assert called(words, places) == expected


def called(words: str, places: dict[str, str]) -> set[str]:
    """The names and the addresses that a command's processes look up or connect to, but for their own."""
    folder = places["FOLDER"]
    noted = Path(folder, "noted")
    noted.write_text("")
    for name, place in places.items():
        words = words.replace(name, place)
    others = re.compile(r"PIP_|HF_|.*_proxy$", re.IGNORECASE)
    inherited = {name: value for name, value in clean_environment().items() if not others.match(name)}
    environment = {
        **inherited, **dict.fromkeys(("HOME", "OPENSLED_CACHE_DIR", "XDG_CONFIG_HOME"), folder),
        "LD_PRELOAD": f"{folder}/note.so", "NOTED": str(noted), "HF_ENDPOINT": "http://hub.invalid",
        "PIP_INDEX_URL": "https://index.invalid/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull,
    }  # fmt: skip
    command = [sys.executable, "-m", "opensled", *words.removesuffix(" ...").split()]
    if words.endswith("..."):
        with Process(command[3:], environment=environment, isolated=True) as process:
            process.wait_ready(300)
    else:
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    return {line.removeprefix("::ffff:") for line in noted.read_text().split()} - OWN
