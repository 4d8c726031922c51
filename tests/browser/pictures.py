"""The pictures of docs/page.md: `python -m tests.browser.pictures docs/images`, with SmolLM2 where it is."""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from lab.testbed.processes import free_port
from opensled.core.messages import ChatMessage
from opensled.models.store import is_here
from tests.browser.crowd import Crowd
from tests.browser.fixtures import CHROMIUM, asked, edge, served

QUESTION = "What is the capital of France, and what is it known for?"
DESKTOP, PHONE = {"width": 1180, "height": 760}, {"width": 390, "height": 844}
FRAMES, EVERY = 6, 1.0  # pictures of one answer, and seconds from one to the next
FRAME = (0, 0, 740, 220)  # of the conversation, in pixels
GAP = 12  # pixels between pictures side by side
SHOTS = (("dark", DESKTOP, "fleet-dark"), ("light", PHONE, "fleet-phone"))
NAMES = [
    f"{room}-{kind}" for room in ("kitchen", "hall", "attic", "study") for kind in ("hub", "panel", "robot")
]


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as cache, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        _chats(browser, folder, Path(cache))
        _fleet(browser, folder, Path(cache))
        browser.close()
    phones = [folder / f"page-{name}-phone.png" for name in ("device", "fleet")]
    _side_by_side([Image.open(phone).convert("RGB") for phone in phones], 2, folder / "page-phone.png")
    for phone in phones:
        phone.unlink()


def _chats(browser, folder, cache):
    """A device of SmolLM2 on a core each; one answer without drafts comes first, so that their gain is known."""
    model = "smollm2" if is_here("smollm2") else "tiny"
    with (
        served("--engine", "torch", "--threads", "1", model=model) as server,
        edge(server.wait_ready(300), "--device-name", "kitchen-hub", folder=cache) as device,
    ):
        address = device.wait_ready(300)
        asked(address, QUESTION, max_tokens=60, opensled={"drafts": False})
        frames = _answer(browser, address, "light", DESKTOP, "device-desktop", folder)
        _side_by_side(frames, 2, folder / "page-frames.png")
        _answer(browser, address, "light", PHONE, "device-phone", folder)


def _fleet(browser, folder, cache):
    """Twelve devices of the tiny model."""
    http, story = f"127.0.0.1:{free_port()}", (ChatMessage("user", "Tell me a story about a fox."),)
    with (
        served("--engine", "torch", "--threads", "1", http=http) as server,
        Crowd(server.wait_ready(300), NAMES, cache, drafter="llamacpp", prompt=story),
    ):
        for scheme, size, name in SHOTS:
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(f"http://{http}/")
            page.get_by_role("switch").first.wait_for()
            page.wait_for_timeout(25_000 if size is DESKTOP else 3_000)  # the graph of the rate wants a past
            _save(page.screenshot(), folder / f"page-{name}.png")
            page.close()


def _answer(browser, address, scheme, size, name, folder):
    """One answer: pictures while it comes, and one of its end that is kept."""
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.goto(f"http://{address}/")
    page.locator("#state[data-state=good]").wait_for()
    page.locator("details").evaluate("box => { box.open = true }")
    page.fill("#longest", "90")
    page.locator("details").evaluate("box => { box.open = false }")
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    frames = []
    while len(frames) < FRAMES and page.locator(".busy").count():
        page.wait_for_timeout(EVERY * 1000)
        frames.append(Image.open(io.BytesIO(page.locator("#log").screenshot())).crop(FRAME))
    page.locator(".turn.assistant .facts:has-text('tokens/s')").wait_for(timeout=120_000)
    page.wait_for_timeout(1500)
    _save(page.screenshot(), folder / f"page-{name}.png")
    page.close()
    return frames


def _side_by_side(pictures, columns, path):
    width, height = max(each.width for each in pictures), max(each.height for each in pictures)
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), "white")
    for at, each in enumerate(pictures):
        sheet.paste(each, (at % columns * (width + GAP), at // columns * (height + GAP)))
    _shrunk(sheet).save(path, optimize=True)


def _save(shot, path):
    _shrunk(Image.open(io.BytesIO(shot))).save(path, optimize=True)


def _shrunk(picture):
    """With a palette: pages have few colours."""
    return picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
