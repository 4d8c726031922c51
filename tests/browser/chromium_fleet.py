"""The fleet on a server's page: many devices, hostile names, switches, operators, replicas."""

import json

import httpx
from playwright.sync_api import expect

from lab.testbed.processes import free_port
from tests.browser.crowd import Crowd
from tests.browser.fixtures import edge, served
from tests.loops import block_until

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)//",
    "__proto__",
    "constructor",
    "שלום" * 8,
    "a" * 64,  # the longest one
    "{{7*7}}",
    "'; DROP TABLE devices; --",
)


def row(page, name):
    return page.locator("tr").filter(has=page.get_by_role("cell", name=name, exact=True))


def looks(http):
    """One look of the fleet, as the page gets it."""
    with httpx.stream("GET", f"http://{http}/page/events", timeout=20) as reply:
        line = next(line for line in reply.iter_lines() if line.startswith("data: "))
    return json.loads(line.removeprefix("data: "))


def test_fifty_devices(opened, tmp_path):
    """Each has its row, one can be found, and a look is drawn well within the second until the next one."""
    http = f"127.0.0.1:{free_port()}"
    names = [f"device-{number:02}" for number in range(50)]
    with served(http=http) as server, Crowd(server.wait_ready(), names, tmp_path):
        shown = opened(http)
        expect(shown.page.get_by_role("switch")).to_have_count(50)
        expect(
            shown.page.locator(".card", has_text="Accepted tokens of a draft").locator(".bar").first
        ).to_be_visible()
        shown.page.fill("#filter", "device-07")
        expect(shown.page.get_by_role("switch")).to_have_count(1)
        block_until(lambda: shown.page.evaluate("document.activeElement.id") == "filter")
        shown.page.wait_for_timeout(1500)  # a look comes meanwhile: it must not take the filter away
        assert shown.page.input_value("#filter") == "device-07"
        expect(shown.page.get_by_role("switch")).to_have_count(1)
        shown.page.fill("#filter", "")
        expect(shown.page.get_by_role("switch")).to_have_count(50)
        seconds = shown.page.evaluate(
            "() => Math.min(...Array.from({ length: 9 }, () => {"
            " const t = performance.now(); draw(); return performance.now() - t }))"
        )
        assert seconds < 100, f"{seconds} ms to draw, the quickest of nine"
        memory = shown.page.locator(".card", has_text="KV memory")
        held = [
            int(each.replace(",", "")) for each in memory.locator(".bar span:last-child").all_text_contents()
        ]
        whole = int(memory.locator("small").text_content().split()[1].replace(",", ""))
        assert sum(held) == whole > 10_000  # tokens, like the tenants' and everything else
        tokens = shown.page.locator(".card", has_text="Tokens a second").locator(".big")
        expect(tokens).not_to_have_text("0")


def test_a_switch_rests_one_device_and_wakes_it_again(opened, tmp_path):
    http = f"127.0.0.1:{free_port()}"
    every = ("--policy", "fcfs")  # asks each device for drafts, whether they pay or not
    with served(*every, http=http) as server, Crowd(server.wait_ready(), ["kitchen", "hall"], tmp_path):
        shown = opened(http)
        switch = shown.page.get_by_role("switch", name="Drafts of kitchen")
        expect(switch).to_have_attribute("aria-checked", "true")
        switch.click()
        expect(switch).to_have_attribute("aria-checked", "false")

        def drafts(name):
            return next(one["drafts"] for one in looks(http)["devices"] if one["device"] == name)

        expect(row(shown.page, "kitchen")).to_contain_text("rested by you")
        expect(row(shown.page, "hall")).not_to_contain_text("rested by you")
        settled = [drafts("kitchen")]
        block_until(lambda: settled[-1] == (settled.append(drafts("kitchen")) or settled[-1]))
        hall = drafts("hall")
        block_until(lambda: drafts("hall") > hall)
        assert drafts("kitchen") == settled[-1]
        again = opened(http)
        expect(again.page.get_by_role("switch", name="Drafts of kitchen")).to_have_attribute(
            "aria-checked", "false"
        )
        again.page.get_by_role("switch", name="Drafts of kitchen").press("Space")
        block_until(lambda: drafts("kitchen") > settled[-1])
        expect(switch).to_have_attribute("aria-checked", "true")


def test_hostile_names_are_text(opened, tmp_path):
    http = f"127.0.0.1:{free_port()}"
    with served(http=http) as server, Crowd(server.wait_ready(), HOSTILE, tmp_path, rounds=False):
        shown = opened(http)
        expect(shown.page.get_by_role("switch")).to_have_count(len(HOSTILE))
        for name in HOSTILE:
            expect(row(shown.page, name)).to_have_count(1)
            shown.page.get_by_role("switch", name=f"Drafts of {name}", exact=True).click()
        expect(shown.page.get_by_role("switch", checked=True)).to_have_count(0)
        assert not shown.dialogs and shown.page.locator("table img, table svg, table script").count() == 0
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_only_operators_see_the_fleet_where_tenants_have_tokens(opened, tmp_path):
    (tmp_path / "tokens").write_text("tenant-token family\n")
    (tmp_path / "operators").write_text("s3cr3t\n")
    for file in ("tokens", "operators"):
        (tmp_path / file).chmod(0o600)
    http = f"127.0.0.1:{free_port()}"
    options = ["--tokens", str(tmp_path / "tokens"), "--operator-keys", str(tmp_path / "operators")]
    with served(*options, http=http) as server:
        server.wait_ready()
        shown = opened(http, state="warn", expected=("401", "net::ERR"))
        page = shown.page
        for wrong in ("tenant-token", "nonsense"):
            expect(page.locator("#locked-why")).to_contain_text("operator")
            page.fill("#key", wrong)
            page.press("#key", "Enter")
        expect(page.locator("#locked-why")).to_contain_text("operator")
        page.fill("#key", "s3cr3t")
        page.press("#key", "Enter")
        expect(page.locator("#state")).to_have_text("serving")
        page.click("#tab-chat")
        shown.ask("How many days are 17 weeks?", ends=False)
        expect(page.locator("#locked-why")).to_contain_text("--tokens")  # an operator's key opens no answers
        page.fill("#key", "tenant-token")
        page.press("#key", "Enter")
        page.click("text=Ask again")
        shown.ended()
        expect(page.locator("#state")).to_have_text("serving")
        assert page.context.cookies() == [] and page.evaluate("localStorage.length") == 0
        assert "s3cr3t" not in page.url + page.content()


def test_a_device_with_keys_opens_its_page_by_one(opened, home, tmp_path):
    (tmp_path / "keys").write_text("my-key\n")
    (tmp_path / "keys").chmod(0o600)
    with edge(home.server, "--http-keys", str(tmp_path / "keys"), folder=tmp_path) as device:
        shown = opened(device.wait_ready(), state="warn", expected=("401", "net::ERR"))
        shown.page.fill("#key", "my-key")
        shown.page.press("#key", "Enter")
        expect(shown.page.locator("#state")).to_have_text("server reachable")
        assert shown.ask("How many days are 17 weeks?") == "17 weeks = 119 days"


def test_a_revoked_device_says_so_and_its_dot_is_red(opened, tmp_path):
    (tmp_path / "tokens").write_text("token-1 kitchen\n")
    (tmp_path / "mine").write_text("token-1\n")
    for file in ("tokens", "mine"):
        (tmp_path / file).chmod(0o600)
    with served("--tokens", str(tmp_path / "tokens")) as server:
        device = edge(server.wait_ready(), "--token-file", str(tmp_path / "mine"), folder=tmp_path)
        with device:
            shown = opened(device.wait_ready())
            shown.ask("How many days are 17 weeks?")
            (tmp_path / "tokens").write_text("token-2 hall\n")
            expect(shown.page.locator("#state[data-state=bad]")).to_have_text("not let in by the server")
            expect(shown.page.locator("#banner")).to_contain_text("pair this device again")
            assert httpx.get(f"http://{device.address}/readyz").status_code == 503


def test_a_gateway_shows_its_replicas(opened):
    http = f"127.0.0.1:{free_port()}"
    with served("--replicas", "2", "--engine", "llamacpp", http=http) as gateway:
        gateway.wait_ready(240)
        shown = opened(http)
        replicas = shown.page.locator(".card", has_text="Replicas").locator("tbody tr")
        expect(replicas).to_have_count(2)
        expect(replicas.first).to_contain_text("serving")
        shown.page.click("#tab-chat")
        assert shown.ask("How many days are 17 weeks?")
