"""A draft head on a device: the drafts of the head beside the target, by ONNX Runtime and from rows of a verdict.

Run: pytest tests/test_device_heads.py
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from edge_client.checks.head_folder import check_head
from edge_client.config import EdgeConfig
from edge_client.drafter_choice import FittingFactory, made
from edge_client.drafters.chain import ChainFactory
from edge_client.drafters.head import DeviceHead, HeadFactory
from opensled.drafting.head_form import ABOUT, DRAFT, PARTS, READ
from opensled.errors import NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.features import FeatureRows
from opensled.messages import ChatMessage, DraftBlock, Limits, ModelInfo, SamplingParams
from opensled.noise import noise_key
from opensled.sampling import sampler
from opensled.store import heldout_path, model_path
from opensled_training.heads.export_command import export_head
from opensled_training.heads.export_config import ExportHeadConfig
from scheduler.fcfs import Fcfs
from tests.system import ask, running
from verify_server.drafting.base import Ask
from verify_server.engine import torch_engine
from verify_server.engine.base import Segment
from verify_server.engine.torch_engine import TorchEngine
from verify_server.engine.torch_scores import rounded
from verify_server.heads import attach
from verify_server.heads.context import HeadContext
from verify_server.heads.drafter import FrameDrafter, HeadDrafter, PlaceDrafter
from verify_server.heads.head_file import load
from verify_server.heads.step_drafter import StepDrafter
from verify_server.heads.target_parts import TargetParts
from verify_server.session_manager import SessionLimits
from verify_server.text.hf_text import HFText

KINDS: dict[str, type[HeadDrafter]] = {"ctc": FrameDrafter, "specformer": PlaceDrafter, "owl": StepDrafter}
KEY = noise_key(7)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Callable[[str], Path]:
    """The head of a kind that comes with OpenSLED, as a device loads it."""

    @cache
    def made(kind: str) -> Path:
        out = tmp_path_factory.mktemp("heads") / kind
        assert export_head(ExportHeadConfig("tiny", kind, str(out))) == 0
        return out

    return made


@pytest.fixture(scope="module", params=KINDS)
def folder(request, exported: Callable[[str], Path]) -> Path:
    return exported(request.param)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return torch_engine.load(
        str(model_path("tiny")), device="cpu", dtype="float32", kv_tokens=4096, numerics="fast"
    )


@pytest.fixture(scope="module")
def texts() -> list[tuple[int, ...]]:
    """Held-out tasks with their answers."""
    text, found = HFText(model_path("tiny")), []
    for line in heldout_path().read_text().splitlines()[::7]:
        task = json.loads(line)
        if not task["answer"]:  # one of a kind whose answers are checked, not compared
            continue
        turns = [ChatMessage(turn["role"], turn["content"]) for turn in task["messages"]]
        found.append((*text.render(turns), *text.encode(task["answer"])))
    return found[:24]


class Both:
    """The same head beside the target and on a device, behind the same rows of the target."""

    def __init__(self, engine: TorchEngine, folder: Path) -> None:
        kind = folder.name
        self.factory = HeadFactory(str(folder), 1)
        found = load(attach.shipped("tiny", kind))
        self.context = HeadContext(found.head, engine.info.num_blocks)
        parts = TargetParts(engine.network, torch.as_tensor(found.draft_ids, dtype=torch.int64))
        self.beside = KINDS[kind](found.head, self.context, parts)
        self.engine, self.taps = engine, found.head.shape.taps
        engine.tap()
        self.device: DeviceHead = self.factory.create()

    def read(self, tokens: Sequence[int], params: SamplingParams, is_rounded: bool) -> np.ndarray:
        """Compute all of `tokens` but the last; both heads have its rows then."""
        count = len(tokens) - 1
        blocks = tuple(range(-(-len(tokens) // 16) + 2))
        self.engine.attach(self.context)
        segment = Segment(tuple(tokens[:count]), 0, blocks, 1, features=self.taps)
        scores = self.engine.forward([segment])
        self.engine._reader = None
        states = torch.stack([scores._features[tap][0, :count] for tap in self.taps], dim=1).float()
        self.device.begin(tokens, sampler(params, KEY, False, len(tokens)))
        if is_rounded:
            data, scales = rounded(states)
            flat = tuple(scales.flatten().tolist())
            self.device.features(FeatureRows(0, states.shape[-1], flat, data.numpy().tobytes(), self.taps))
        else:
            self.device.take(0, states.numpy())
        self.blocks = blocks
        return states.numpy()

    def drafts(
        self, tokens: Sequence[int], params: SamplingParams, is_tree: bool
    ) -> tuple[DraftBlock, DraftBlock]:
        """Beside the target, and on the device."""
        ask_ = Ask(1, "t", tokens, 24, params, KEY, self.blocks, most_of_tree=24 if is_tree else 0)
        [proposal] = self.beside.propose([ask_])
        if not is_tree:
            return proposal.block, DraftBlock(len(tokens), tuple(self.device.propose()))
        nodes = list(self.device.propose_tree())
        block = DraftBlock(
            len(tokens), tuple(node.token for node in nodes), tuple(node.parent for node in nodes)
        )
        return proposal.block, block


def places(texts: Sequence[tuple[int, ...]], factory: HeadFactory) -> Iterator[tuple[int, ...]]:
    """Beginnings of the texts behind which a head can draft."""
    known = set(factory._parts.ids.tolist())
    for text in texts:
        for end in range(max(8, len(text) - 12), len(text), 5):
            if text[end - 1] in known:
                yield text[:end]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_a_device_drafts_what_the_server_drafts(
    engine: TorchEngine, folder: Path, texts: list[tuple[int, ...]], temperature: float, is_tree: bool
) -> None:
    both, params = Both(engine, folder), SamplingParams(temperature=temperature, max_tokens=9)
    lengths = []
    for tokens in places(texts[:10], both.factory):
        both.read(tokens, params, is_rounded=False)
        beside, device = both.drafts(tokens, params, is_tree)
        assert device.ids == beside.ids and device.parents == beside.parents
        told = [[token.confidence for token in block.tokens] for block in (beside, device)]
        assert np.allclose(*told, atol=1e-3)
        lengths.append(len(device.ids))
    assert len(lengths) > 15 and max(lengths) >= 4


def test_rows_of_eight_bits_hardly_change_a_draft(
    engine: TorchEngine, folder: Path, texts: list[tuple[int, ...]], record_property
) -> None:
    both, params = Both(engine, folder), SamplingParams(temperature=0.0, max_tokens=9)
    same = first = count = 0
    for tokens in places(texts, both.factory):
        both.read(tokens, params, is_rounded=True)
        beside, device = both.drafts(tokens, params, is_tree=False)
        count, same = count + 1, same + (beside.ids == device.ids)
        first += beside.ids[:1] == device.ids[:1]
    record_property("agreement", (first / count, same / count))
    assert count > 30 and first / count >= 0.95 and same / count >= 0.85


def test_answers_stay_and_a_step_writes_more(
    engine: TorchEngine, folder: Path, texts: list[tuple[int, ...]]
) -> None:
    text, factory = HFText(model_path("tiny")), HeadFactory(str(folder), 1)
    params = SamplingParams(temperature=0.0, max_tokens=24)
    tasks = [json.loads(line) for line in heldout_path().read_text().splitlines()[5::120]][:3]
    limits = SessionLimits(linger=0.2, features=True)

    async def answers() -> tuple[int, int]:
        tokens = steps = 0
        async with running(engine, policy=Fcfs(30.0), limits=limits, text=text) as network:
            for task in tasks:
                prompt = text.render(
                    [ChatMessage(turn["role"], turn["content"]) for turn in task["messages"]]
                )
                plain = await ask(network, prompt, factory.create(), params)
                wanted = {"features": factory.features, "feature_rows": factory.feature_rows}
                headed = await ask(network, prompt, factory.create(), params, **wanted)
                assert headed.tokens == plain.tokens and not plain.rounds, "without rows there is no draft"
                tokens, steps = tokens + len(headed.tokens), steps + len(headed.commits)
        return tokens, steps

    tokens, steps = asyncio.run(answers())
    assert tokens / steps > 1.8


# -- what is missing, and what does not fit ------------------------------------------------------------------


def begun(factory: HeadFactory, tokens: Sequence[int]) -> DeviceHead:
    drafter = factory.create()
    drafter.begin(tokens, sampler(SamplingParams(temperature=0.0, max_tokens=9), KEY, False, len(tokens)))
    return drafter


def rows_at(factory: HeadFactory, first: int, count: int, **changes: object) -> FeatureRows:
    size, layers = factory.about.size, factory.features
    scales = (0.1,) * (count * len(layers))
    data = bytes(range(100)) * (count * len(layers) * size // 100 + 1)
    return FeatureRows(first, size, scales, data[: count * len(layers) * size], layers)._replace(**changes)


def test_without_the_newest_row_or_a_known_token_there_is_no_draft(folder: Path) -> None:
    factory = HeadFactory(str(folder), 1)
    known = int(factory._parts.ids[5])
    unknown = next(id for id in range(10**6) if id not in set(factory._parts.ids.tolist()))
    drafter = begun(factory, [known] * 9)
    assert list(drafter.propose()) == [] and list(drafter.propose_tree()) == []
    drafter.features(rows_at(factory, 0, 7))
    assert list(drafter.propose()) == []
    drafter.features(rows_at(factory, 7, 1))
    assert list(drafter.propose())
    drafter.commit([unknown])
    drafter.features(rows_at(factory, 8, 1))
    assert list(drafter.propose()) == []
    drafter.commit([known])
    drafter.features(rows_at(factory, 9, 1))
    assert list(drafter.propose()), "it goes on behind the next known token"
    drafter.begin([known] * 11, drafter._sampler)
    assert list(drafter.propose()) == [], "rows of another text are forgotten"


def test_rows_may_have_gaps_and_come_twice(folder: Path) -> None:
    factory = HeadFactory(str(folder), 1)
    known = int(factory._parts.ids[5])
    gapped, again = begun(factory, [known] * 40), begun(factory, [known] * 40)
    for drafter in (gapped, again):
        drafter.features(rows_at(factory, 3, 4))
        drafter.features(rows_at(factory, 38, 1))
    again.features(rows_at(factory, 3, 4))
    assert list(gapped.propose()) == list(again.propose()) != []


def test_memory_for_rows_is_bounded(folder: Path) -> None:
    factory = HeadFactory(str(folder), 1)
    drafter = begun(factory, [int(factory._parts.ids[5])] * 2000)
    for first in range(0, 2000, 100):
        drafter.features(rows_at(factory, first, 100))
    assert len(drafter._rows) <= 2 * 256 and list(drafter.propose())


def test_rows_of_another_target_are_left(folder: Path, caplog) -> None:
    factory = HeadFactory(str(folder), 1)
    drafter = begun(factory, [int(factory._parts.ids[5])] * 3)
    size = factory.about.size
    for _ in range(2):
        drafter.features(
            FeatureRows(
                1,
                size + 1,
                (1.0,) * len(factory.features),
                bytes((size + 1) * len(factory.features)),
                factory.features,
            )
        )
        drafter.features(rows_at(factory, 1, 1, layers=tuple(range(20, 20 + len(factory.features)))))
    assert list(drafter.propose()) == [] and caplog.text.count("cannot draft") == 1


def info_of(vocabulary: str) -> ModelInfo:
    return ModelInfo("tiny", 9, vocabulary, (1,), Limits(4, 9), (), "exact", "0", "h", True)


def test_a_head_of_another_vocabulary_is_refused(folder: Path) -> None:
    factory = HeadFactory(str(folder))
    factory.check_vocabulary(info_of(factory.about.vocabulary))
    with pytest.raises(VocabularyMismatch, match="export a head"):
        factory.check_vocabulary(info_of("another"))


def test_a_device_makes_it_by_name_alone_and_in_a_chain(folder: Path) -> None:
    config = EdgeConfig(drafter="head", draft_model=str(folder))
    assert made(config, config.drafter, config.draft_model).features == HeadFactory(str(folder)).features
    chain = ChainFactory("lookup,head", str(folder))
    assert chain.features and chain.create() is not None
    assert chain.feature_rows == (folder.name == "owl")
    with pytest.raises(UsageError, match="--draft-model FOLDER"):
        HeadFactory()


@pytest.mark.parametrize("name", [READ, DRAFT, PARTS, ABOUT])
def test_files_that_are_missing_or_damaged_are_named(folder: Path, tmp_path: Path, name: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).unlink()
    with pytest.raises(NotFound, match=f"{name}.*export"):
        HeadFactory(str(tmp_path))
    (tmp_path / name).write_bytes(b"no such thing")
    with pytest.raises(UnsupportedModel, match=name):
        HeadFactory(str(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"taps": []}, {"taps": [-1]}, {"taps": list(range(9))}, {"size": 0}, {"length": "5"}, {"target": 3},
        {"format": 2}, {"more": 1}, {"by_steps": 1}, {"by_steps": True, "taps": [1, 2]},
        {"by_steps": True, "has_blank": True}, {"size": 1 << 20}, {"length": 10_000}, {"has_blank": "yes"},
    ],
)  # fmt: skip
def test_a_description_that_cannot_be_is_refused(folder: Path, tmp_path: Path, changes: dict) -> None:
    about = json.loads((folder / ABOUT).read_text())
    (tmp_path / ABOUT).write_text(json.dumps(about | changes))
    with pytest.raises(UnsupportedModel, match="does not describe a head"):
        HeadFactory(str(tmp_path))


def test_heads_that_cannot_be_exported_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="train-head"):
        export_head(ExportHeadConfig("tiny-hub", "ctc", str(tmp_path)))
    with pytest.raises(UnsupportedModel, match="a target of other sizes"):
        export_head(ExportHeadConfig("tiny-draft", str(attach.shipped("tiny", "ctc")), str(tmp_path)))


def test_the_doctor_knows_heads(folder: Path) -> None:
    about = HeadFactory(str(folder)).about
    facts = {"model_id": "tiny", "vocab_size": 9, "fingerprint": about.vocabulary}
    found = check_head(str(folder), facts)
    often = "round" if about.kind == "owl" else "token of the answer"
    assert found.status == "ok"
    assert f"{len(about.taps) * (about.size + 4):,} bytes for each {often}" in found.detail
    assert check_head(str(folder), None).status == "ok"
    assert check_head(str(folder), facts | {"fingerprint": "another"}).status == "fail"
    assert check_head(str(folder.parent), facts).status == check_head("", facts).status == "fail"


def test_a_head_is_never_guessed() -> None:
    for drafter in ("head", "chain:lookup,head"):
        with pytest.raises(UsageError, match="--draft-model FOLDER"):
            FittingFactory(EdgeConfig(drafter=drafter)).check_vocabulary(info_of("any"))
