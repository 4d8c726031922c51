"""SmolLM2 drafted for by a real llama-server process with the same file: its texts are the engine's own."""

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from edge_client.draft_servers.server import ServerFactory
from edge_client.drafters.base import DrafterOptions
from lab.benchmarks import peer_server
from lab.testbed.processes import free_port
from opensled.core.vocabulary import fingerprint
from opensled.text.tokenizer import TargetTokenizer
from tests import real_texts
from tests.real_texts import MODEL, SAMPLINGS, answers
from tests.system import Answer, ask
from tests.tiny_drafts import tiny_info
from verify_server.engine.torch.torch_engine import TorchEngine, load
from verify_server.text.gguf_text import GgufText

AT_ONCE = 2

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MODEL.is_file(), reason="needs SmolLM2; run: opensled pull smollm2"),
    pytest.mark.skipif(
        find_spec("xllamacpp") is None, reason="needs llama.cpp's server: extra bench (xllamacpp)"
    ),
]


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return load(str(MODEL), device="cpu", dtype="float32", numerics="exact", kv_tokens=AT_ONCE * 1536)


@pytest.fixture(scope="module")
def served() -> Iterator[ServerFactory]:
    text, port = GgufText(MODEL), free_port()
    tokenizer = TargetTokenizer(text.tokenizer_json)
    pieces = tokenizer.pieces
    info = tiny_info(
        model_id="smollm2", vocab_size=len(pieces), fingerprint=fingerprint(pieces), eos_ids=text.eos_ids
    )
    with peer_server.running(peer_server.command(MODEL, port, AT_ONCE, 1536), port) as found:
        factory = ServerFactory("", 1, DrafterOptions(draft_url=found.url))
        factory.fit(info, tokenizer)
        yield factory


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_text_is_the_engines_own(engine, served, sampling, monkeypatch):
    alone = asyncio.run(answers(engine, "none", sampling, 1))
    drafted = []

    async def counting(*asked: Any, **options: Any) -> Answer:
        answer = await ask(*asked, **options)
        drafted.append(sum(round.drafted for round in answer.rounds))
        return answer

    monkeypatch.setattr(real_texts, "factory", lambda name: served)
    monkeypatch.setattr(real_texts, "ask", counting)
    assert asyncio.run(answers(engine, "server", sampling, AT_ONCE)) == alone
    assert served.mode == "token ids" and sum(drafted) > 0
