"""How the pages look: at three sizes, light and dark, to people who do not see or do not like motion."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

SIZES = {"desktop": (1280, 860), "tablet": (820, 1180), "phone": (390, 844), "small phone": (320, 568)}
MOVING = """() => [...document.querySelectorAll("*")].map((each) => getComputedStyle(each)).filter((style) =>
  parseFloat(style.transitionDuration) > 0 || style.animationName !== "none" || style.scrollBehavior === "smooth"
).length"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", ["device", "fleet"])
def test_nothing_is_cut_off_at_any_size(opened, home, which, size, scheme):
    width, height = SIZES[size]
    shown = opened(getattr(home, which), viewport={"width": width, "height": height}, color_scheme=scheme)
    for tab in ("#tab-chat", "#tab-side"):
        if shown.page.locator(tab).is_visible():
            shown.page.click(tab)
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.page.evaluate("document.documentElement.scrollHeight") <= height
    if shown.page.locator("#tab-chat").is_visible():
        shown.page.click("#tab-chat")
    for button in shown.page.locator("#ask button:visible, nav button:visible").all():
        box = button.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["height"] >= 24


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["device", "fleet"])
def test_a_reader_of_screens_finds_no_fault(opened, home, which, scheme):
    """axe-core's rules, contrast included."""
    shown = opened(getattr(home, which), color_scheme=scheme, bypass_csp=True)
    if which == "fleet":
        shown.page.click("#tab-chat")
    shown.ask("Tell me a story about a fox.")
    faults = Axe().run(shown.page).response["violations"]
    if which == "fleet":
        shown.page.click("#tab-side")
        faults += Axe().run(shown.page).response["violations"]
    assert not [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in faults]


def test_colours_follow_the_system_and_the_button(opened, home):
    shown = opened(home.device, color_scheme="dark")

    def ground():
        return shown.page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = ground()
    shown.page.click("#theme")
    assert ground() != dark
    shown.page.click("#theme")
    assert ground() == dark
    shown.page.reload()
    expect(shown.page.locator("#theme")).to_have_attribute("aria-label", "Colours: dark")


def test_nothing_moves_for_those_who_want_no_motion(opened, home):
    shown = opened(home.device, reduced_motion="reduce")
    assert shown.page.evaluate(MOVING) == 0
    assert shown.page.evaluate("getComputedStyle(document.getElementById('log')).scrollBehavior") == "auto"
