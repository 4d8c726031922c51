"""Answers as Markdown: what is shown, that no character is lost, and that no answer becomes markup of its own."""

import random

import pytest
from playwright.sync_api import expect

from opensled.text.origins import ORIGINS

# Shows a text that comes in pieces, and tells what became of it.
SHOW = """([pieces, guesses]) => {
  const said = document.createElement("div");
  said.className = "said";
  document.getElementById("log").replaceChildren(said);
  const state = { said, text: "", pieces: [], guess: "", frozen: 0, live: [] };
  pieces.forEach((piece, at) => {
    state.text += piece;
    state.pieces.push([piece, ["accepted", "recovered", "bonus", "server"][at % 4]]);
    state.guess = guesses[at] || "";
    paint(state);
  });
  state.guess = "";
  paint(state);
  const all = [...said.querySelectorAll("*")];
  return {
    text: said.textContent, html: said.innerHTML, shown: said.innerText, frozen: state.frozen,
    tags: [...new Set(all.map((each) => each.tagName))],
    attributes: [...new Set(all.flatMap((each) => each.getAttributeNames()))],
  };
}"""
PAINT = """(text) => {
  const said = document.createElement("div"), pieces = [[text, "server"]];
  const state = { said, text, pieces, guess: "", frozen: 0, live: [] };
  paint(state);
  return state.cost;
}"""
TAGS = {"P", "PRE", "CODE", "STRONG", "UL", "OL", "LI", "SPAN"}
ATTRIBUTES = {"data-origin", "class", "hidden", "value", "tabindex"}
ANSWER = """# Adding

Use **plus**, as in `a + b`:

```python
def add(a, b):
    return a + b  # **not bold**
```
1. first
2. second, with `code`
   and a line more
- a point
  - a deeper one

2 * 3 * 4 = 24, and __init__ stays."""
ATTACKS = (
    "<img src=x onerror=alert(1)>",
    "**<script>alert(1)</script>**",
    "`<svg onload=alert(1)>`",
    "```html\n<iframe srcdoc='<script>alert(1)</script>'>\n```",
    "[click](javascript:alert(1)) ![x](http://evil.example/a.png)",
    '- <a href="javascript:alert(1)">x</a>\n1. <style>*{display:none}</style>',
    "# <h1 onclick=alert(1)>",
    '``` "><img src=x onerror=alert(1)>',
    "<!-- --!> <b>" * 20,
)


def show(opened, home, pieces, guesses=()):
    shown = opened(home.device)
    expect(shown.page.locator("#legend button").first).to_be_visible()
    return shown, shown.page.evaluate(SHOW, [list(pieces), list(guesses)])


def test_code_bold_lists_and_headings(opened, home):
    shown, seen = show(opened, home, [ANSWER])
    page = shown.page
    assert page.locator("#log strong").all_text_contents() == ["plus"]
    assert page.locator("#log pre code").text_content() == "def add(a, b):\n    return a + b  # **not bold**"
    assert page.locator("#log li").all_inner_texts() == [
        "first", "second, with code\n   and a line more", "a point", "a deeper one",
    ]  # fmt: skip
    assert page.locator("#log .head").inner_text() == "Adding"
    assert "**plus" not in seen["shown"] and "```" not in seen["shown"] and "2 * 3 * 4" in seen["shown"]
    assert "__init__ stays" in seen["shown"] and set(seen["tags"]) == TAGS
    assert seen["text"] == ANSWER


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_answer_becomes_no_markup(opened, home, attack):
    shown, seen = show(opened, home, [attack[: len(attack) // 2], attack[len(attack) // 2 :]])
    assert seen["text"] == attack and set(seen["tags"]) <= TAGS and set(seen["attributes"]) <= ATTRIBUTES
    assert not shown.dialogs and all(
        url.startswith((f"http://{home.device}/", "data:")) for url in shown.requests
    )


def test_no_character_is_lost_however_the_text_comes(opened, home):
    """Random texts of the characters that mean something, in random pieces, with guesses that change in between."""
    shown, _ = show(opened, home, ["Hi"])
    rng = random.Random(7)
    words = [
        "a",
        "B c",
        "\n",
        "\n\n",
        "**",
        "*",
        "`",
        "```",
        "~~~",
        "- ",
        "1. ",
        "12) ",
        "# ",
        "  ",
        " ",
        "<b>",
        "&amp;",
        "é",
    ]
    for _ in range(400):
        pieces = ["".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 12))]
        guesses = ["".join(rng.choices(words, k=rng.randint(0, 4))) for _ in pieces]
        seen = shown.page.evaluate(SHOW, [pieces, guesses])
        plain = shown.page.evaluate(SHOW, [["".join(pieces)], []])
        assert seen["text"] == "".join(pieces) == plain["text"], pieces
        assert seen["shown"] == plain["shown"] and seen["tags"] == plain["tags"], pieces
        assert set(seen["tags"]) <= TAGS and set(seen["attributes"]) <= ATTRIBUTES, pieces


@pytest.mark.parametrize(
    "text", ["**a " * 5000, "`" * 20000, "``a`` **" * 3000, "- " * 9000, "```\n" * 4000, "1. \n" * 4000]
)
def test_hostile_text_takes_no_long_time(opened, home, text):
    shown, _ = show(opened, home, ["Hi"])
    took = shown.page.evaluate(PAINT, text)
    assert took < 500, f"{took} ms"


def test_an_answer_is_copied_as_the_target_wrote_it(opened, home):
    shown = opened(home.device, permissions=["clipboard-read", "clipboard-write"])
    answer = shown.ask("Write a Python function that adds two numbers.")
    shown.page.click(".tools button")
    expect(shown.page.locator(".tools button")).to_have_text("Copied")
    assert shown.page.evaluate("navigator.clipboard.readText()") == answer


def test_copying_without_the_clipboard_of_a_secure_page(opened, home):
    shown = opened(home.device, permissions=["clipboard-read", "clipboard-write"])
    shown.page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })"
    )
    answer = shown.ask("How many days are 17 weeks?")
    shown.page.click(".tools button")
    expect(shown.page.locator(".tools button")).to_have_text("Copied")
    shown.page.evaluate("delete navigator.clipboard")
    assert shown.page.evaluate("navigator.clipboard.readText()") == answer


def test_a_new_conversation_is_in_sight(opened, home):
    shown = opened(home.device, viewport={"width": 390, "height": 844})
    button = shown.page.get_by_role("button", name="New conversation")
    expect(button).to_be_visible()
    expect(button).to_be_disabled()
    shown.ask("How many days are 17 weeks?")
    button.click()
    expect(shown.page.locator(".turn")).to_have_count(0)
    expect(button).to_be_disabled()


def test_examples_are_the_targets_own(opened, home):
    shown = opened(home.device)
    examples = shown.page.locator("#examples button")
    expect(examples).to_have_text(
        ["Turn on the kitchen light.", "How many days are 17 weeks?", "Tell me a story about a fox."]
    )
    examples.first.click()
    shown.ended()


def test_the_legend_has_what_can_occur_and_the_terminals_colours(opened, home):
    shown = opened(home.device)
    expect(shown.page.locator("#legend button")).to_have_text(["accepted", "recovered", "bonus", "server"])
    shown.ask("Tell me a story about a fox.")
    for origin in set(shown.origins()):
        spans = shown.answer.locator(f"[data-origin={origin}]")
        assert spans.first.get_attribute("class") == (ORIGINS[origin].colour or None)
    fleet = opened(home.fleet)
    fleet.page.click("#tab-chat")
    expect(fleet.page.locator("#examples button").first).to_be_visible()
    expect(fleet.page.locator("#legend button")).to_have_count(0)  # there is but one origin
