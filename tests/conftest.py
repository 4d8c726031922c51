"""For every test: one thread for torch (tests share few cores with the processes they start), and no user's files."""

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from lab.shipped.recipes import make_all
from lab.testbed.processes import Process
from opensled.process import logs
from tests import hypothesis_profiles as _profiles  # noqa: F401  (before any test is defined)
from tests.warm import Parent

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as in the commands
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# As in the commands: else what gRPC says of one test's streams can fall among the lines that another one reads.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Triton reads it at its import, which torch may be the first to do
os.environ.setdefault("TRITON_INTERPRET", "1")

# The processes of tests start by the hundred: they find sources compiled, whatever this shell prefers.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

make_all(Path(__file__).resolve().parents[1] / "models")  # as the installation does, and after it a checkout

COLD_START = Process._start
WARM = (["opensled", "serve"], ["opensled", "relay"])  # they import torch
OURS = ("OPENSLED_", "TEST_", "XDG_")  # variables that only our own code reads, none of it at its import

# The files that take the longest, in this order: `make test` and `make test-lab` list the slowest tests. They start
# first, so that no worker waits for another one at the end.
SLOWEST = (
    "test_processes",
    "test_thinking",
    "test_cluster",
    "test_cluster_streams",
    "test_gpu_bench",
    "test_simulated_head",
    "test_hierarchy_processes",
    "test_vision_processes",
    "test_without_linux",
    "test_triton_attention",
    "test_loose_references",
    "test_left_out",
    "test_drain",
    "test_lossless",
    "test_policies_starvation",
    "test_conformance",
    "test_head_drafters",
    "test_rolling_restart",
    "test_bad_input",
    "test_goodput_lossless",
    "test_control_tokens",
    "test_shaped",
    "test_engine",
    "test_known_geometry",
    "test_plan_answers",
    "test_training",
    "test_hierarchy_lossless",
    "test_hierarchy_planner",
    "test_tree_engine",
    "test_stateful_protocol",
    "test_stateful_session",
)


def pytest_collection(session):
    """In a fresh checkout each worker would compile every test: it begins with a share, and finds the rest."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    files = sorted(file for folder in session.config.args for file in Path(folder).glob("test_*.py"))
    first = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
    for file in (*files[first:], *files[:first]):
        with suppress(Exception, pytest.skip.Exception):  # its collection reports it
            importlib.import_module(".".join(file.with_suffix("").parts))


# Files whose tests start real processes, or what takes as long: `make test-system` runs them.
SYSTEM = frozenset(
    [
        "test_bare_machine",
        "test_chat_terminal",
        "test_cluster",
        "test_cluster_start",
        "test_cluster_streams",
        "test_conformance",
        "test_draft_server_processes",
        "test_drain",
        "test_goodput_processes",
        "test_pairing_processes",
        "test_hangup",
        "test_hierarchy_kills",
        "test_hierarchy_processes",
        "test_key_rotation",
        "test_llama_server",
        "test_loading",
        "test_metrics_port",
        "test_offline_processes",
        "test_probes",
        "test_processes",
        "test_rolling_restart",
        "test_run",
        "test_scrape_guard",
        "test_startup",
        "test_thinking",
        "test_upgrade",
        "test_vision_processes",
        "test_without_linux",
    ]
)


def pytest_itemcollected(item):
    if item.path.stem in SYSTEM:
        item.add_marker("system")


def pytest_collection_modifyitems(items):
    places = {f"{name}.py": place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(SLOWEST)))


def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**given))
    return True


def pytest_sessionstart():
    """A shell ignores SIGINT for what it starts in the background, and so would every program that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config):
    """A worker's last collection of garbage can take seconds; execnet interrupts what takes more than five."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory):
    """No test reads what the user of this machine configured, calibrated or fetched."""
    os.environ["OPENSLED_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session", autouse=True)
def _warm_servers():
    """Servers and relays of tests start from a process that has imported torch already (tests/warm.py)."""
    parents = []

    def start(self, environment):
        changed = {name for name, value in environment.items() if os.environ.get(name) != value}
        warm = self.arguments[2:4] in WARM and "--replicas" not in self.arguments
        if not warm or not all(name.startswith(OURS) for name in changed):
            return COLD_START(self, environment)
        if not parents:
            parents.append(Parent())
        with self.log.open("ab") if self.log else contextlib.nullcontext(sys.__stderr__) as errors:
            return parents[0].start(self.arguments[3:], environment, errors.fileno())

    Process._start = start
    yield
    Process._start = COLD_START


def _exact(dtype):
    from opensled.models.store import model_path
    from verify_server.engine.torch.torch_engine import load  # seconds of imports

    return load(str(model_path("tiny")), device="cpu", dtype=dtype, kv_tokens=8192)


@pytest.fixture(scope="session")
def exact64():
    """Target `tiny` at level exact, one for all tests of a worker: a server keeps nothing in its engine."""
    return _exact("float64")


@pytest.fixture(scope="session")
def exact32():
    return _exact("float32")


@pytest.fixture(scope="session")
def reference():
    """What target `tiny` writes, by plain transformers in float64."""
    from tests import lossless  # transformers

    return lossless.reference()


@pytest.fixture
def served():
    """Serves a backend's API from a thread of its own; gives the port."""
    import uvicorn

    from http_api.app import build_app
    from tests.page_world import CountingView

    running = []

    def start(backend) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        app = build_app(backend, view=CountingView())
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread))
        return listener.getsockname()[1]

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def client(served):
    """Makes official clients of a backend's API."""
    import openai

    def connect(backend):
        url = f"http://127.0.0.1:{served(backend)}/v1"
        return openai.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=60)

    return connect


@pytest.fixture(params=["fcfs", "goodput"])
def each_policy(request, monkeypatch):
    """Servers of a test plan by the one policy, then by the other."""
    from tests.mischief import goodput

    if request.param == "goodput":
        monkeypatch.setattr("tests.system.Fcfs", goodput)
        monkeypatch.setattr("tests.sessions.Fcfs", goodput)


@pytest.fixture
def cold_start(monkeypatch):
    """Servers start as a user's do."""
    monkeypatch.setattr(Process, "_start", COLD_START)


@pytest.fixture(autouse=True)
def _logs_as_before(monkeypatch):
    """A command that a test runs in this process may log as JSON, or let errors alone through: the next test would."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    loggers = [logging.getLogger(name) for name in ("", *logs.OURS)]
    levels, root = [logger.level for logger in loggers], logging.getLogger()
    before = [handler for handler in root.handlers if isinstance(handler, logs._Stderr)]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, logs._Stderr)] + before
    logging.captureWarnings(False)


@pytest.fixture(autouse=True)
def _signal_handlers_as_before():
    """A program that a test runs in this process may have set some: the next Ctrl-C of a test would end the worker."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def plain_logs():
    """Logs as a command has them by default, whatever an earlier test left behind."""
    logs.configure()


@pytest.fixture
def config_paths(tmp_path, monkeypatch):
    """Where ./opensled.toml and the user's own file go; neither exists yet."""
    home, here = tmp_path / "home/opensled", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent))
    monkeypatch.delenv("OPENSLED_NO_CONFIG", raising=False)
    monkeypatch.chdir(here)
    return here / "opensled.toml", home / "config.toml"


@pytest.fixture
def own_calibration(tmp_path, monkeypatch):
    """Where the calibration of a test's own configuration folder is kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPENSLED_NO_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "opensled" / "profiles" / "devices" / "this-machine.toml"
