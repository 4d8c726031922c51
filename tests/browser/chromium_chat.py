"""The chat of a device's page: streamed answers in the colours of their tokens, stopped, lost, and found again."""

import httpx
import pytest
from playwright.sync_api import expect

from lab.testbed.processes import free_port
from tests.browser.fixtures import asked, edge, gated, served
from tests.gated_target import reached
from tests.loops import block_until
from tests.outages import LENGTH, QUESTION, expected_text

STORY = "Tell me a story about a fox."
# Notes how long the answer is at each change
WATCH = """() => {
  window.lengths = [];
  const said = () => document.querySelector(".turn.assistant .said");
  const observer = new MutationObserver(() => said() && window.lengths.push(said().textContent.length));
  observer.observe(document.getElementById("log"), { childList: true, subtree: true });
}"""


def test_an_answer_streams_in_the_colours_of_its_tokens(opened, home):
    """The text is the API's, it grows in pieces, and each piece has the origin that the statistics count."""
    shown = opened(home.device)
    shown.ask_until(
        STORY,
        lambda origins: origins.count("accepted") > 3 and "recovered" in origins,
        before=lambda: shown.page.evaluate(WATCH),
    )
    lengths = shown.page.evaluate("window.lengths")
    assert lengths == sorted(lengths) and len(set(lengths)) > 4
    reference = asked(home.device, STORY, max_tokens=512)
    assert shown.answer.text_content() == reference["choices"][0]["message"]["content"]
    origins = shown.origins()
    assert set(origins) <= {"accepted", "recovered", "bonus", "server"}
    assert f"{reference['usage']['completion_tokens']} tokens" in shown.facts.text_content()
    accepted, other = (
        shown.answer.locator(f"[data-origin={name}]").first.evaluate(
            "e => getComputedStyle(e).textDecoration"
        )
        for name in ("accepted", "recovered")
    )
    assert accepted != other


def test_drafts_that_are_off_change_no_text(opened, home):
    shown = opened(home.device)
    with_drafts = shown.ask(STORY)
    shown.set("#drafts", False)
    shown.page.click("#forget")
    assert shown.ask(STORY) == with_drafts and set(shown.origins()) == {"server"}
    expect(shown.facts).to_contain_text("no drafts")


@pytest.mark.parametrize("touch", [False, True])
def test_each_token_is_explained_to_a_mouse_and_to_a_finger(opened, home, touch):
    shown = opened(home.device, has_touch=touch)
    shown.ask_until(STORY, lambda origins: "accepted" in origins)
    token, tip = shown.answer.locator("[data-origin=accepted]").first, shown.page.locator("#tip")
    token.tap() if touch else token.hover()
    expect(tip).to_have_text("accepted: drafted on this device, and accepted by the target")
    shown.page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    box = tip.evaluate("e => [e.getBoundingClientRect().left, innerWidth]")
    assert 0 <= box[0] < box[1]


def test_everything_works_by_the_keyboard(opened, home):
    shown = opened(home.device, viewport={"width": 390, "height": 844})
    page = shown.page
    assert page.evaluate("document.activeElement.id") == "question"
    page.keyboard.type("Turn on")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("the kitchen light.")
    assert page.input_value("#question") == "Turn on\nthe kitchen light."
    page.keyboard.press("Enter")
    shown.ended()
    page.focus("#legend button >> nth=1")
    expect(page.locator("#tip")).to_have_text(
        "recovered: of the target, in place of a draft token that it rejected"
    )
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#side")).to_be_visible()
    expect(page.locator("#chat")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "tab-side"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_an_answer_can_be_stopped_and_its_sequence_ends(opened, tmp_path):
    """What is shown until then stays, the server is told, and the next question is answered."""
    gate = tmp_path / "open"
    with gated(gate) as server, edge(server.wait_ready(), "--drafter", "lookup", folder=tmp_path) as device:
        shown = opened(device.wait_ready())
        shown.ask(QUESTION, ends=False)
        block_until(reached(gate).exists)
        block_until(lambda: len(shown.answer.text_content()) > 3)
        shown.page.click("#stop")
        expect(shown.facts).to_have_text("stopped")
        expect(shown.page.locator("#send")).to_be_visible()
        assert shown.answer.text_content() in expected_text()
        gate.touch()
        shown.page.locator("details").evaluate("box => { box.open = true }")
        shown.page.fill("#longest", "8")
        assert shown.ask(QUESTION)


def test_a_server_that_is_killed_and_returns_changes_nothing(opened, tmp_path):
    """In mid-answer. Meanwhile the page says so, and shows what is drafted on as provisional."""
    gate = tmp_path / "open"
    with gated(gate) as first:
        address = first.wait_ready()
        with edge(address, "--drafter", "lookup", "--offline", "provisional", folder=tmp_path) as device:
            shown = opened(device.wait_ready())
            shown.page.locator("details").evaluate("box => { box.open = true }")
            shown.page.fill("#longest", str(LENGTH))
            shown.ask(QUESTION, ends=False)
            block_until(reached(gate).exists)
            first.kill()
            expect(shown.facts).to_contain_text("waiting for the server")
            ghost = shown.answer.locator("[data-origin=provisional]")
            expect(ghost).not_to_be_empty()
            expect(shown.page.locator("#state")).to_have_text("server away")
            confirmed = shown.answer.text_content().removesuffix(ghost.text_content())
            gate.touch()
            with gated(gate, address) as second:
                second.wait_ready()
                shown.ended()
                expect(shown.page.locator("#state")).to_have_text("server reachable")
                assert shown.answer.text_content() == expected_text()
                assert confirmed and expected_text().startswith(confirmed)
                expect(ghost).to_have_count(0)


def test_words_of_the_draft_model_alone_are_marked(opened, tmp_path):
    with served("--engine", "llamacpp") as server:
        options = ["--drafter", "llamacpp", "--offline", "local-only"]
        with edge(server.wait_ready(), *options, folder=tmp_path) as device:
            shown = opened(device.wait_ready())
            server.kill()
            shown.page.locator("details").evaluate("box => { box.open = true }")
            shown.page.fill("#longest", "12")
            assert shown.ask(STORY) and set(shown.origins()) == {"local"}
            expect(shown.facts).to_contain_text("12 not verified")
            shown.answer.locator("[data-origin=local]").first.hover()
            expect(shown.page.locator("#tip")).to_contain_text("nothing verifies it")


def test_a_device_that_ends_and_returns_finds_its_page_again(opened, home, tmp_path):
    """The conversation is the page's own: it goes on where it was."""
    http = f"127.0.0.1:{free_port()}"
    with edge(home.server, http=http, folder=tmp_path) as device:
        device.wait_ready()
        shown = opened(http)
        shown.ask(STORY)
    expect(shown.page.locator("#banner")).to_contain_text("no connection")
    expect(shown.page.locator("#state")).to_have_text("no connection")
    shown.ask("And then?", ends=False)
    expect(shown.facts).to_contain_text("The answer ended early")
    with edge(home.server, http=http, folder=tmp_path) as device:
        device.wait_ready()
        expect(shown.page.locator("#banner")).to_be_hidden()
        shown.page.click("text=Ask again")
        shown.ended()
        assert shown.page.locator(".turn.user").count() == 2
    expect(shown.page.locator("#state")).to_have_text("no connection")


def test_a_reader_who_leaves_in_mid_answer_leaves_nothing_behind(opened, tmp_path):
    gate, metrics = tmp_path / "open", f"127.0.0.1:{free_port()}"
    with (
        gated(gate, "127.0.0.1:0", "--metrics", metrics) as server,
        edge(server.wait_ready(), "--drafter", "lookup", folder=tmp_path) as device,
    ):
        shown = opened(device.wait_ready())
        shown.ask(QUESTION, ends=False)
        block_until(reached(gate).exists)
        shown.page.close()
        gate.touch()

        def sessions():
            lines = httpx.get(f"http://{metrics}/metrics").text.splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("opensled:sessions{"))

        block_until(lambda: sessions() == 0, else_told="the sequence of a closed page lives on")
