"""The draft heads that come with OpenSLED: small, whole, of their targets, and worth their pass."""

import asyncio
from pathlib import Path

import pytest

from edge_client.drafters.none import NoneDrafter
from lab.training.heads.smaller import shrink
from lab.training.heldout import heldout_path, read_heldout
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.models.store import bundled_folder
from scheduler.fcfs import Fcfs
from tests.system import ask, running
from verify_server.drafting.heads import head_file
from verify_server.drafting.heads.head_file import ABOUT, WEIGHTS
from verify_server.options.registries import SERVER_DRAFTERS
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start.load_target import load

MEGABYTE = 1e6
HEADS = sorted(path.parent for path in (bundled_folder() / "_heads").glob("*/" + ABOUT))
ROOT = Path(__file__).resolve().parents[1]
TOKENS, EIGHT = 40, Fcfs(float("inf"), 8)


def test_there_are_the_heads_that_the_docs_name():
    kinds = {"smollm2": ("ctc", "specformer"), "tiny": ("ctc", "specformer")}
    assert [path.name for path in HEADS] == [f"{target}-{kind}" for target in kinds for kind in kinds[target]]


@pytest.mark.parametrize("folder", HEADS, ids=lambda path: path.name)
def test_a_head_is_whole_and_small(folder):
    assert (folder / WEIGHTS).stat().st_size <= 12 * MEGABYTE
    head = head_file.load(folder)
    target, _, kind = folder.name.partition("-")
    assert (head.target, head.head.shape.kind) == (target, kind)
    rounded = list(head.training["rounded_tokens_per_step"].values())[-1]
    assert rounded > 0.97 * head.training["heldout_tokens_per_step"] > 0.97
    assert (folder / "curve.jsonl").is_file()


@pytest.mark.long
def test_a_head_is_shipped_in_four_bits(tmp_path):
    """The command that made it: what it says of the smaller head is what its file says."""
    whole = bundled_folder() / "_heads/tiny-ctc"
    found = shrink(head_file.load(whole), tmp_path / "work", tmp_path / "out")
    smaller = head_file.load(tmp_path / "out")
    assert smaller.training["rounded_tokens_per_step"] == found["after"] and smaller.training["bits"] == 4
    assert 0.9 * found["before"]["tree"] < found["after"]["tree"] < found["before"]["tree"]
    assert (tmp_path / "out" / WEIGHTS).stat().st_size < 0.6 * (whole / WEIGHTS).stat().st_size


def test_all_models_together_are_small_and_devices_get_no_head():
    files = [path for path in (ROOT / "models").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 80 * MEGABYTE
    assert "_heads" not in (ROOT / "deploy/edge/pyproject.toml").read_text()


def prompts_of(target: ServedModel) -> list[tuple[int, ...]]:
    """One task of each kind that no head has learned from."""
    items = [item for [item] in read_heldout(heldout_path(), 1).values()]
    return [
        tuple(
            target.text.render([ChatMessage(turn["role"], turn["content"]) for turn in item.messages])
            if item.chat
            else target.text.encode(item.text)
        )
        for item in items
    ]


@pytest.mark.parametrize(
    ("kind", "temperature"), [pytest.param("ctc", 0.8, marks=pytest.mark.long), ("specformer", 0.0)]
)
async def test_the_heads_of_tiny_draft_what_tiny_writes(reference, kind, temperature):
    config = ServeConfig(model="tiny", dtype="float64", numerics="fast", kv_tokens=4000, server_drafter=kind)
    target = load(config)
    drafter = SERVER_DRAFTERS.get(kind)(config, target)
    prompts = prompts_of(target)
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=3)

    async with running(target.engine, drafter=drafter, policy=EIGHT, text=target.text) as network:
        asking = [ask(network, prompt, NoneDrafter(), params) for prompt in prompts]
        (texts, stats) = (
            [answer.tokens for answer in await asyncio.gather(*asking)],
            network.manager.loop.machine.stats,
        )
    for prompt, text in zip(prompts, texts):
        expected, _ = reference.generate(
            prompt, temperature=temperature, max_tokens=TOKENS, seed=3, ignore_eos=False
        )
        assert list(text) == expected
    assert stats.tokens / (stats.tokens - stats.own.accepted) > (2.5 if temperature == 0 else 1.7)
