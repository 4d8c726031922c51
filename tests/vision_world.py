"""Questions about pictures to a random vision-language model, and what transformers alone would answer."""

import base64

import pytest

from edge_client.drafters.none import NoneDrafter
from lab.testbed.vision_reference import VisionReference
from opensled.core.images import Image, ImageFacts, TurnImage, digest_of
from opensled.core.messages import ChatMessage, SamplingParams
from tests.fakes import OracleDrafter
from tests.system import ask
from tests.vision_models import picture, vision_model
from verify_server.engine.torch import torch_engine
from verify_server.text.hf_text import HFText

WORDS = 24


def fixtures():
    """Of a module: the model's folder, its engine, its text, and the reference."""

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory):
        return vision_model(tmp_path_factory.mktemp("vision"))

    @pytest.fixture(scope="module")
    def engine(folder):
        return torch_engine.load(str(folder), dtype="float64", kv_tokens=2048)

    @pytest.fixture(scope="module")
    def text(folder):
        return HFText(folder)

    @pytest.fixture(scope="module")
    def reference(folder):
        return VisionReference(folder)

    return folder, engine, text, reference


def image(seed: int) -> Image:
    data = picture(seed)
    return Image(digest_of(data), data)


def question(words: str, *seeds: int) -> tuple[ChatMessage, ...]:
    """A question behind its pictures."""
    return (ChatMessage("user", words, images=tuple(TurnImage(0, image(seed)) for seed in seeds)),)


def expected(reference, words: str, seeds, params: SamplingParams) -> list[int]:
    parts = [*[{"type": "image"} for _ in seeds], {"type": "text", "text": words}]
    prompt = reference.show([{"role": "user", "content": parts}], [picture(seed) for seed in seeds])
    return reference.generate(
        prompt, temperature=params.temperature, seed=params.seed, max_tokens=params.max_tokens
    )[0]


async def answered(network, words, seeds, params, drafter=None, **options):
    asked = question(words, *seeds)
    images = tuple(placed.image for placed in asked[0].images)
    return await ask(network, asked, drafter or NoneDrafter(), params, images=images, **options)


def knowing(reference, words, seeds, params, acceptance=0.7) -> OracleDrafter:
    """A drafter that knows the answer, and errs at random."""
    answer = expected(reference, words, seeds, params)

    def target(context):
        at = len(context) - len(prompt)
        return answer[at] if at < len(answer) else 5

    parts = [*[{"type": "image"} for _ in seeds], {"type": "text", "text": words}]
    prompt = reference.show([{"role": "user", "content": parts}], [picture(seed) for seed in seeds])
    return OracleDrafter(acceptance, target=target)


FACTS = ImageFacts(token_id=3, rows=9)
DATA = picture(1)
TEXT = base64.b64encode(DATA).decode()
URL = f"data:image/png;base64,{TEXT}"
