"""A target that writes what its prompt dictates, and the drafter that knows it: for clients and APIs, which ask little
of a model and much of the text.

    opensled serve --engine tests.stub_target:load --listen 127.0.0.1:0
    opensled edge --server HOST:PORT --drafter tests.stub_target:Oracle

The last WRITE<hex>END of the prompt is the answer, as UTF-8 in hex; hex that begins with ff is an answer of single
byte tokens, which may be no text. With NANAT in the prompt the logits after it are not finite. Variables: STUB_FOLDER,
the folder of another tokenizer; STUB_SLEEP, seconds that each step takes.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from edge_client.drafters.base import Drafter, DrafterFactory
from opensled.core.messages import DraftToken
from opensled.models.store import model_path
from opensled.text.tokenizer import _byte_letters
from tests.fakes import FakeEngine, Follower
from verify_server.engine.base import EngineInfo, Scores, Segment
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.text.hf_text import HFText

FOLDER = Path(os.environ.get("STUB_FOLDER") or model_path("tiny"))
SLEEP = float(os.environ.get("STUB_SLEEP", "0"))
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
VOCAB = TOKENIZER.get_vocab_size()
ASSISTANT = TOKENIZER.token_to_id("<|assistant|>")
EOS, NOT_FINITE = 0, -1
SINGLE_BYTES = b"\xff"
UNLIKELY = np.random.default_rng(3).normal(0, 1, VOCAB)


def tokens_of(dictated: bytes) -> tuple[int, ...]:
    """Whole tokens of UTF-8, or behind `SINGLE_BYTES` one for each byte."""
    if dictated.startswith(SINGLE_BYTES):
        letters = {spelt: letter for letter, spelt in _byte_letters().items()}
        return tuple(TOKENIZER.token_to_id(letters[bytes([byte])]) for byte in dictated[1:])
    return tuple(TOKENIZER.encode(dictated.decode(), add_special_tokens=False).ids)


@cache
def answer_to(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The dictated tokens, `NOT_FINITE` in their end where the prompt asks for it."""
    text = TOKENIZER.decode(list(prompt), skip_special_tokens=False)
    dictated = re.findall(r"WRITE([0-9a-f]*)END", text) or [b"nothing to write".hex()]
    return (*tokens_of(bytes.fromhex(dictated[-1])), *([NOT_FINITE] if "NANAT" in text else []))


def next_of(context: Sequence[int]) -> int:
    """What the target writes next; `EOS` at the end of an answer, and outside of a chat."""
    if ASSISTANT not in context:
        return EOS
    turn = len(context) - 1 - list(reversed(context)).index(ASSISTANT)
    answer, written = answer_to(tuple(context[:turn])), len(context) - turn - 1
    return answer[written] if written < len(answer) else EOS


def logits_after(context: Sequence[int]) -> np.ndarray:
    """float64 [VOCAB]: sure of the dictated token, unless it is to be `NOT_FINITE`."""
    token = next_of(context)
    if token == NOT_FINITE:
        return np.full(VOCAB, np.nan)
    logits = UNLIKELY + 0.01 * (len(context) % 7)
    logits[token] = 20.0
    return logits


@dataclass
class StubEngine(FakeEngine):
    """Reads each text back through the KV blocks, as `FakeEngine` does."""

    num_blocks: int = 16_000
    block_size: int = 16
    context_length: int = 131_072

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, model_id="stub", vocab_size=VOCAB, eos_ids=(EOS,))

    def forward(self, segments: Sequence[Segment]) -> Scores:
        if SLEEP:
            time.sleep(SLEEP + 0.0005 * sum(len(segment.tokens) for segment in segments))
        rows = [logits_after(context) for context in super().forward(segments)._contexts]
        return NumpyScores(np.stack(rows) if rows else np.zeros((0, VOCAB)))


def load(config: ServeConfig) -> ServedModel:
    """For `opensled serve --engine`."""
    return ServedModel("tiny", StubEngine(), HFText(FOLDER))


class OracleDrafter(Follower):
    """Proposes what the target will write, whatever a grammar makes of it."""

    def propose(self) -> Iterator[DraftToken]:
        context = list(self.truth)
        while (token := next_of(context)) != NOT_FINITE:
            context.append(token)
            yield DraftToken(token, 0.9)


class Oracle(DrafterFactory):
    name = "oracle"

    def create(self) -> Drafter:
        return OracleDrafter()
