"""A plugin of pytest: the browser, and the processes whose pages it opens."""

import os
import shutil
from contextlib import contextmanager

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from lab.testbed.processes import Process, free_port, settings
from tests.gated_target import GATE

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
GONE = ("net::ERR",)  # processes end before their pages
PATIENCE = 20_000  # milliseconds for what is expected to show

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def chromium():
    """The browser of the system; names that end in .example lead to this machine, as an attacker's might."""
    assert CHROMIUM, "no Chromium here: apt-get install chromium, or set CHROMIUM"
    arguments = ["--host-resolver-rules=MAP *.example 127.0.0.1"]
    if os.geteuid() == 0:  # Chromium refuses its sandbox to root
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


class Opened:
    """A page, and what a test looks at beside it."""

    def __init__(self, page, expected):
        """`expected`: parts of complaints in the console that belong to the test."""
        self.page, self.requests, self.complaints, self.dialogs = page, [], [], []
        self.expected = expected
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dialog)

    def _heard(self, message):
        if message.type in ("error", "warning") and not any(part in message.text for part in self.expected):
            self.complaints.append(message.text)

    def _dialog(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def ask(self, question, ends=True):
        """Type a question; waits for the end of its answer, and returns its text."""
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")
        if ends:
            self.ended()
            return self.answer.text_content()
        return None

    def ask_until(self, question, enough, before=lambda: None):
        """Ask anew until `enough` of the tokens' origins: a device on a busy machine may have no draft in time."""
        for _ in range(20):
            before()
            self.ask(question)
            if enough(self.origins()):
                return
            self.page.click("#forget")
        raise AssertionError(f"no answer has the origins that are wanted; the last one has {self.origins()}")

    def ended(self):
        expect(self.page.locator(".turn.assistant").last.locator(".facts")).to_contain_text("tokens/s")
        expect(self.page.locator(".busy")).to_have_count(0)

    @property
    def answer(self):
        return self.page.locator(".turn.assistant").last.locator(".said")

    @property
    def facts(self):
        return self.page.locator(".turn.assistant").last.locator(".facts")

    def origins(self):
        """The origin of each token of the last answer."""
        return [each.get_attribute("data-origin") for each in self.answer.locator("[data-origin]").all()]

    def set(self, selector, on):
        """A box among the options."""
        if not self.page.locator("details").get_attribute("open"):
            self.page.locator("details").evaluate("box => { box.open = true }")
        self.page.set_checked(selector, on)


@pytest.fixture
def opened(chromium):
    """Opens a page: `opened(address, **context)`. Nothing may be left in its console, but what the test takes out."""
    contexts, pages = [], []

    def open(address, path="/", state="good", expected=GONE, **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        contexts.append(context)
        found = Opened(context.new_page(), expected)
        pages.append(found)
        found.page.goto(f"{address if '//' in address else 'http://' + address}{path}")
        if state:
            expect(found.page.locator(f"#state[data-state={state}]")).to_be_visible()
        return found

    yield open
    for context in contexts:
        context.close()
    assert not [complaint for page in pages for complaint in page.complaints]


def edge(server, *options, http="127.0.0.1:0", folder=None, **kept):
    variables = settings(cache_dir=folder) if folder else {}
    words = ["edge", "--server", server, "--http", http, *options]
    return Process(words, isolated=True, environment=variables, **kept)


def served(*options, http="127.0.0.1:0", listen="127.0.0.1:0", model="tiny", **kept):
    """A server with a page, whose devices alone draft; `http_of` tells where."""
    arguments = ["serve", model, "--server-drafter", "none", "--listen", listen, "--http", http, *options]
    return Process(arguments, isolated=True, **kept)


def gated(gate, listen="127.0.0.1:0", *options):
    """A server of a slow target, which stops in mid-answer until the file `gate` is there."""
    engine = ["--engine", "tests.gated_target:load", "--model", "fake", "--server-drafter", "none"]
    return Process(
        ["serve", *engine, "--listen", listen, *options], isolated=True, environment={GATE: str(gate)}
    )


def asked(address, question, **fields):
    """The answer of the API to the same question."""
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, **fields}
    reply = httpx.post(f"http://{address}/v1/chat/completions", json=body, timeout=60)
    return reply.raise_for_status().json()


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A server with a page, and a device of it."""
    folder, http = tmp_path_factory.mktemp("cache"), f"127.0.0.1:{free_port()}"
    with (
        served(http=http) as server,
        edge(server.wait_ready(), "--device-name", "kitchen", folder=folder) as device,
    ):
        yield Home(server.address, http, device.wait_ready())


class Home:
    """Addresses: of the server for devices, of its page, and of the device's page."""

    def __init__(self, server, fleet, device):
        self.server, self.fleet, self.device = server, fleet, device


@contextmanager
def throttled(page, kilobytes_per_second):
    """A browser behind a slow line."""
    session = page.context.new_cdp_session(page)
    rate = kilobytes_per_second * 1024
    slow = {"offline": False, "latency": 20, "downloadThroughput": rate, "uploadThroughput": rate}
    session.send("Network.emulateNetworkConditions", slow)
    yield
    session.detach()
