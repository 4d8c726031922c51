"""A device drafts behind pictures without reading them: placeholders are skipped, positions stay positions."""

import asyncio
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from edge_client.device.served_target import TargetMemory
from edge_client.drafters.base import ModelDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.sent_images import MOST, SentImages
from edge_client.round.draft_job import BlockBudget
from edge_client.round.drafting import DraftThread
from opensled.core.images import Image, ImageFacts
from opensled.core.messages import SamplingParams, Verdict
from opensled.core.noise import gumbel
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler
from tests.tiny_drafts import tiny_info

PLACEHOLDER, WIDTH, KEY = 7, 40, bytes(range(16))
PROMPT = (1, *[PLACEHOLDER] * 5, 2, 3)


class Flat(ModelDrafter):
    """Thinks every id as likely as any other, so that its draft is the noise alone; keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(context_length=100)
        self.told: list[int] = []

    def begin(self, prompt, sampler):
        self.told = list(prompt)
        super().begin(prompt, sampler)

    def forward(self, tokens, start):
        return np.zeros(WIDTH)

    def truncate(self, length):
        return length


def loudest(position: int) -> int:
    """The id with the most noise: what a target that thinks the same would draw."""
    return int(np.argmax(gumbel(KEY, position, np.arange(WIDTH))))


async def drafted(truth: Truth, params: SamplingParams, *commits):
    drafter = Flat()
    thread = DraftThread(drafter, FixedLength(3), WIDTH, looks_ahead=False, placeholder=PLACEHOLDER)
    blocks = []
    try:
        thread.begin(truth, Sampler(params, KEY, prompt_length=truth.prompt_length))
        blocks.append((await thread.draft(truth, BlockBudget(3))).block)
        for tokens in commits:
            truth.extend(Verdict(len(truth), tokens))
            blocks.append((await thread.draft(truth, BlockBudget(3))).block)
    finally:
        thread.close()
    return drafter, blocks


def test_drafts_share_the_noise_of_their_positions_in_the_whole_text():
    truth = Truth(PROMPT)
    drafter, blocks = asyncio.run(drafted(truth, SamplingParams(temperature=1.0), (4, 5)))
    assert drafter.told == [1, 2, 3]
    for base, block in zip((len(PROMPT), len(PROMPT) + 2), blocks, strict=True):
        assert block.base == base
        assert list(block.ids) == [loudest(base + index) for index in range(3)]


def test_a_placeholder_that_the_target_wrote_is_a_token_like_any_other():
    truth = Truth(PROMPT, (PLACEHOLDER, 4))
    drafter, [block] = asyncio.run(drafted(truth, SamplingParams(temperature=1.0)))
    assert drafter.told == [1, 2, 3, PLACEHOLDER, 4]
    assert list(block.ids) == [loudest(len(PROMPT) + 2 + index) for index in range(3)]


def test_penalties_count_the_answer_alone():
    params = SamplingParams(temperature=0, presence_penalty=1.0)
    truth = Truth(PROMPT, (0, 1))
    _, [block] = asyncio.run(drafted(truth, params))
    assert list(block.ids) == [2, 3, 4], "0 and 1 are in the answer, 2 is in the prompt only"


def test_files_are_sent_once_and_again_where_they_are_lost():
    sent, first, second = SentImages(), Image(b"1" * 32, b"a"), Image(b"2" * 32, b"b")
    assert sent.replace_known((first, second)) == (first, second)
    sent.add((first,))
    assert sent.replace_known((first, second)) == (first.named, second)
    sent.forget((first,))
    assert sent.replace_known((first,)) == (first,)


def test_no_more_pictures_are_remembered_than_it_says():
    sent = SentImages()
    images = [Image(number.to_bytes(32, "big"), b"a") for number in range(MOST + 1)]
    for image in images:
        sent.add((image,))
    assert sent.replace_known(images[:2]) == (images[0], replace(images[1], data=b""))


@pytest.mark.parametrize("images", [None, ImageFacts(token_id=7, rows=3)])
def test_a_device_remembers_whether_its_target_sees(tmp_path, images):
    """For answers while the server is away."""
    memory, info = TargetMemory(tmp_path, "a:1"), tiny_info(has_chat_template=False, images=images)
    asyncio.run(memory.keep(None, info))
    assert memory.recall().info == info


@pytest.mark.parametrize("placeholder", [None, 9])
def test_a_text_without_pictures_is_read_whole(placeholder):
    drafter = Flat()
    with closing(DraftThread(drafter, FixedLength(1), WIDTH, placeholder=placeholder)) as thread:
        thread.begin(Truth(PROMPT), Sampler(SamplingParams(temperature=0), KEY))
    assert drafter.told == list(PROMPT)
