"""`opensled demo --vision`: drawn scenes, questions about them, and answers whose tokens show who drafted them."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image as Pillow

from edge_client.device.config import DeviceConfig
from edge_client.device.device import Device, connect
from edge_client.terminal.chat_view import Answer
from lab.testbed.config import DemoConfig
from lab.testbed.processes import QUIET, Process, exit_on_signals
from lab.testbed.vision_reference import VisionReference
from lab.training.vision.evaluate import heldout_questions
from lab.training.vision.questions import Question, is_right
from opensled.cli.colour import Palette, palette
from opensled.core.answer import Task
from opensled.core.images import Image, TurnImage, digest_of
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.models.store import is_here, model_path
from opensled.text.origins import OF_DRAFTS, ORIGINS, colour_of
from opensled.text.painter import Painter

TARGET, DRAFT = "tiny-vision", "tiny-vision-draft"
# Kinds of scenes, and of the question about each
ASKED = (("shapes", "description"), ("shapes", "color"), ("bars", "bar color"), ("meter", "reading"))
DRAWN = 6  # questions of a kind; of those about such a scene the last one is taken: none is asked about twice
SIDE = 32  # characters of a picture in the terminal; each of them shows two pixels, one above the other


@dataclass
class Asked:
    """A question about a drawn scene, and what came of it."""

    picture: Pillow.Image
    question: Question
    answer: Answer = field(default_factory=Answer)
    pieces: list[tuple[str, str]] = field(default_factory=list)  # texts of the answer, each with its colour
    expected: str = ""  # what transformers alone writes

    @property
    def file(self) -> bytes:
        """As PNG."""
        data = BytesIO()
        self.picture.save(data, "PNG")
        return data.getvalue()

    @property
    def same(self) -> bool:
        return self.answer.text == self.expected

    def report(self) -> dict[str, Any]:
        stats = self.answer.stats
        return {
            "question": self.question.text,
            "answer": self.answer.text,
            "right": is_right(self.question, self.answer.text),
            "same": self.same,
            **(stats.figures() if stats else {}),
        }


def demo_vision(config: DemoConfig) -> int:
    """Run it; exit code 0 only if every answer is what transformers alone writes about that picture."""
    exit_on_signals()
    colours, asked = palette("auto", sys.stdout), _scenes()
    target = ("--model", TARGET, "--dtype", "float32", "--server-drafter=none")  # the device alone drafts
    serve = ("serve", *target, "--listen", "127.0.0.1:0", "--json", *QUIET)
    with Process(serve, isolated=True) as server:
        reference = VisionReference(model_path(TARGET), "float32")
        address = server.wait_ready()
        asyncio.run(_ask_all(asked, address, config.max_tokens))
    for each in asked:
        each.expected = _expected(reference, each, config.max_tokens)
        if not config.json:
            _show(each, colours)
    if config.json:
        print(json.dumps({"target": TARGET, "answers": [each.report() for each in asked]}))
    else:
        _sum_up(asked, colours)
    return 0 if all(each.same for each in asked) else 1


def _scenes() -> list[Asked]:
    """Scenes that were held out of training, each with one question."""
    known = heldout_questions(DRAWN)
    found = []
    for scene_kind, kind in ASKED:
        scene, question = [pair for pair in known[kind] if pair[0].kind == scene_kind][-1]
        found.append(Asked(scene.image, question))
    return found


async def _ask_all(asked: Sequence[Asked], address: str, most: int) -> None:
    drafts = ("llamacpp", DRAFT) if is_here(DRAFT) else ("lookup", "")
    device = await connect(DeviceConfig(server=address, drafter=drafts[0], draft_model=drafts[1]))
    try:
        for each in asked:
            await _ask(device, each, most)
    finally:
        await device.close()


async def _ask(device: Device, each: Asked, most: int) -> None:
    data, painter = each.file, Painter(device.tokenizer)
    image = TurnImage(0, Image(digest_of(data), data))
    question = ChatMessage("user", each.question.text, images=(image,))
    task = Task((question,), SamplingParams(temperature=0, max_tokens=most))
    async with aclosing(device.answer(task)) as chunks:
        async for chunk in chunks:
            each.answer.add(chunk)
            pieces = painter.push(chunk.token_ids, chunk.origins)
            pieces += painter.flush() if chunk.finish_reason else []
            each.pieces += [(text, colour_of(origin)) for text, origin in pieces]


def _expected(reference: VisionReference, each: Asked, most: int) -> str:
    parts = [{"type": "image"}, {"type": "text", "text": each.question.text}]
    prompt = reference.show([{"role": "user", "content": parts}], [each.file])
    return reference.decode(reference.generate(prompt, max_tokens=most)[0])


def _show(each: Asked, colours: Palette) -> None:
    if colours.on:
        print("\n".join(_lines(each.picture)))
    print(f"> {each.question.text}")
    print("".join(colours(text, colour) if colour else text for text, colour in each.pieces))
    print()


def _lines(picture: Pillow.Image) -> list[str]:
    """A picture in characters: the upper half of each has one pixel's colour, the lower half that of the next."""
    pixels = np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Pillow.Resampling.BOX))
    return [
        "".join(_halves(upper, lower) for upper, lower in zip(*pixels[row : row + 2], strict=True))
        + "\x1b[0m"
        for row in range(0, SIDE, 2)
    ]


def _halves(upper: Sequence[int], lower: Sequence[int]) -> str:
    high, low = (";".join(str(int(value)) for value in pixel) for pixel in (upper, lower))
    return f"\x1b[38;2;{high};48;2;{low}m\N{UPPER HALF BLOCK}"


def _sum_up(asked: Sequence[Asked], colours: Palette) -> None:
    if colours.on:
        seen = {colour for each in asked for _, colour in each.pieces}
        for origin in OF_DRAFTS:
            if colour_of(origin) in seen:
                print(f"{colours(origin, colour_of(origin)):>22}  {ORIGINS[origin].meaning}")
    right = sum(is_right(each.question, each.answer.text) for each in asked)
    print(f"{sum(each.same for each in asked)} of {len(asked)} answers are what transformers alone writes")
    print(f"{right} of {len(asked)} are right: {TARGET} is small, and was trained on such scenes")
    print(f"ask about a picture of your own: opensled serve --model {TARGET}, and then")
    print('opensled generate --image FILE "What is in the picture?"')
