"""What web pages of others can do to the page and its API: nothing. And the page itself asks nobody else."""

import contextlib
import http.server
import threading

import httpx
import pytest

from tests.browser.fixtures import asked

TRIES = """async (address) => {
  const outcome = {};
  const tell = async (name, path, options) => {
    try {
      const reply = await fetch(address + path, options);
      outcome[name] = `${reply.type} ${reply.status}`;
    } catch { outcome[name] = "failed" }
  };
  const loaded = (element, home, path) => new Promise((done) => {
    element.onload = () => done(element.contentDocument ? "readable" : element.naturalWidth ? "loaded" : "closed");
    element.onerror = () => done("failed");
    element.src = address + path;
    home.append(element);
  });
  const body = JSON.stringify({ messages: [{ role: "user", content: "Hi" }], temperature: 0 });
  const headers = { "Content-Type": "application/json" };
  await tell("json", "/page/chat", { method: "POST", headers, body });
  await tell("plain", "/v1/chat/completions", { method: "POST", mode: "no-cors", body });
  await tell("events", "/page/events", {});
  await tell("opaque", "/status", { mode: "no-cors" });
  await tell("switch", "/page/devices", { method: "POST", mode: "no-cors", body: "{}" });
  outcome.image = await loaded(new Image(), document.body, "/openapi.json");
  outcome.frame = await loaded(document.createElement("iframe"), document.body, "/");
  return outcome;
}"""

INJECT = """() => {
  const heard = [];
  addEventListener("securitypolicyviolation", (event) => heard.push(event.effectiveDirective));
  const tried = (work) => { try { work() } catch (error) { heard.push(error.name) } };
  tried(() => { document.body.innerHTML = "<img src=x onerror=alert(3)>" });
  tried(() => {
    const script = document.createElement("script");
    script.textContent = "alert(4)";
    document.body.append(script);
  });
  const style = document.createElement("style");
  style.textContent = "body { display: none }";
  document.body.append(style);
  return new Promise((done) => setTimeout(() => done(heard), 300));
}"""


@contextlib.contextmanager
def evil_site():
    """A site of somebody else on this machine; yields its port."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><link rel=icon href=data:,><body>")

        def log_message(self, *told):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site.server_port
        site.shutdown()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost"])
def test_a_foreign_page_reaches_nothing(opened, home, host):
    """Of another site, and of another port of this machine (same site, another origin)."""
    before = home_answers(home)
    with evil_site() as port:
        shown = opened(f"http://{host}:{port}", state=None)
        outcome = shown.page.evaluate(TRIES, f"http://{home.device}")
    assert outcome == {
        "json": "failed", "plain": "opaque 0", "events": "failed", "opaque": "opaque 0", "switch": "opaque 0",
        "image": "failed", "frame": "closed",
    }  # fmt: skip
    assert home_answers(home) == before
    shown.complaints.clear()  # the browser tells what it blocked


def home_answers(home):
    """How many answers the device has begun."""
    lines = httpx.get(f"http://{home.device}/metrics").text.splitlines()
    return [
        line for line in lines if line.startswith(("opensled:request_success_total", "opensled:errors_total"))
    ]


def test_a_name_that_is_pointed_at_this_machine_later_reaches_nothing(opened, home):
    """DNS rebinding: the page's origin is evil.example, and so is the API's."""
    port = home.device.rpartition(":")[2]
    shown = opened(f"http://evil.example:{port}", state=None, expected=("403",))
    assert "forbidden_host" in shown.page.content()


@pytest.mark.parametrize("which", ["device", "fleet"])
def test_the_page_asks_nobody_else_and_keeps_no_cookie(opened, home, which):
    address = getattr(home, which)
    shown = opened(address)
    if which == "fleet":
        shown.page.click("#tab-chat")
    shown.ask("How many days are 17 weeks?")
    assert all(url.startswith((f"http://{address}/", "data:")) for url in shown.requests)
    assert shown.page.context.cookies() == []


def test_what_an_answer_says_never_runs(opened, home):
    """A hostile target, or a user's own text: markup stays text, and what is injected all the same is refused."""
    markup = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    shown = opened(home.device)
    shown.ask(markup)
    assert shown.page.locator(".turn.user .said").text_content() == markup
    assert shown.page.locator(".turn img, .turn script").count() == 0 and not shown.dialogs
    refused = shown.page.evaluate(INJECT)
    assert refused.count("TypeError") >= 1 and "style-src-elem" in refused and not shown.dialogs
    assert shown.page.locator("#question").is_visible()
    shown.complaints.clear()


def test_the_api_still_answers_programs(home):
    assert asked(home.device, "How many days are 17 weeks?")["choices"][0]["message"]["content"]
