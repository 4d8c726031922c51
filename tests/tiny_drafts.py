"""The committed draft models, and what a server of the tiny family says of itself."""

import hashlib
import json
import random
from functools import cache
from pathlib import Path

import numpy as np

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter, ModelDrafter
from opensled.core.messages import DraftToken, Limits, ModelInfo, RuleFacts, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from opensled.core.vocabulary import fingerprint
from opensled.drafting.table_file import TableFile
from opensled.drafting.tables import LruTable, TableShape, as_rows
from opensled.text.call_forms import TAGGED
from opensled.text.tokenizer import TargetTokenizer
from tests.fakes import POISON, next_token

TINY_DRAFT = Path(__file__).parents[1] / "models" / "tiny-draft"
TOKENIZER_JSON = (TINY_DRAFT / "tokenizer.json").read_bytes()

TEXT = """def area(width, height):
    return width * height

def volume(width, height, depth):
    return width * height * depth

def area(width, height):
"""


@cache  # thousands of fakes ask for it
def tiny_tokenizer() -> TargetTokenizer:
    return TargetTokenizer(TOKENIZER_JSON)


@cache
def _fingerprint() -> str:
    return fingerprint(tiny_tokenizer().pieces)


def tiny_info(**changes: object) -> ModelInfo:
    """A server of the `tiny` target, as `Describe` would show it."""
    told: dict = {
        "model_id": "tiny",
        "vocab_size": len(tiny_tokenizer().pieces),
        "fingerprint": _fingerprint(),
        "eos_ids": (0,),
        "limits": Limits(max_draft=16, context_length=1024),
        "rules": (RuleFacts("match", trees=True),),
        "numerics": "exact",
        "version": "0",
        "tokenizer_hash": hashlib.sha256(TOKENIZER_JSON).hexdigest(),
        "has_chat_template": True,
        "calls": TAGGED,
    }
    return ModelInfo(**{**told, **changes})


class ToyDrafter(ModelDrafter):
    """A model whose logits depend on every cached token, and which notices a wrong cache."""

    def __init__(self, rolls_back: bool) -> None:
        super().__init__(context_length=300)
        self.cache: list[int] = []
        self.rolls_back = rolls_back
        self.forwarded = 0

    def forward(self, tokens, start):
        assert len(self.cache) == start and tokens
        self.cache.extend(tokens)
        self.forwarded += len(tokens)
        seed = hashlib.blake2b(json.dumps(self.cache).encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(seed, "little")).normal(size=40)

    def truncate(self, length):
        kept = length if self.rolls_back else 0
        del self.cache[kept:]
        return kept


class Speaker(Drafter):
    """Says always the same, so surely, and remembers what it hears."""

    def __init__(self, tokens, confidence=0.5) -> None:
        self.tokens, self.confidence = tokens, confidence
        self.heard: list = []
        self.closed = False

    def begin(self, prompt, sampler):
        self.heard = list(prompt)

    def propose(self):
        return (DraftToken(token, self.confidence) for token in self.tokens)

    def commit(self, tokens):
        self.heard += tokens

    def close(self):
        self.closed = True


class Model(ModelDrafter):
    """A model drafter that is always right but for the positions in `errs`; `passes` are the ids of each forward."""

    def __init__(self, errs=()):
        super().__init__(1000)
        self.errs, self.passes = set(errs), []

    def forward(self, tokens, start):
        self.passes.append(tuple(tokens))
        logits = np.zeros(POISON)
        token = next_token(self.sequence)
        logits[1 + token % (POISON - 1) if len(self.sequence) in self.errs else token] = 9.0
        return logits

    def truncate(self, length):
        return length


TRACE = (5, 7, 9, 5, 7, 8, 5)  # of methods.md, section 3


def some_table(leaders: int = 50, vocab_size: int = 2048) -> TableFile:
    draw, table = random.Random(leaders), LruTable(TableShape(2, 3, 4, 1000))
    tail: tuple[int, ...] = ()
    while len(table) < leaders:
        tail = table.update(tail, [draw.randrange(vocab_size) for _ in range(3)] * 2)
    return TableFile(as_rows(table.items(), table.shape), table.shape, vocab_size, "f" * 64, "made up")


def greedy_drafts() -> list[list[int]]:
    """Behind texts of several lengths; of the same drafter, which rolls back between them."""
    sampler, text = Sampler(SamplingParams(temperature=0), noise_key(1)), tiny_tokenizer().encode(TEXT)
    drafter, found = DRAFTERS.get("llamacpp")(str(TINY_DRAFT), 1).create(), []
    for cut in range(4, len(text), 5):
        drafter.begin(text[:cut], sampler)
        found.append([token.id for token, _ in zip(drafter.propose(), range(8))])
        drafter.commit(text[cut : cut + 2])
        found.append([token.id for token, _ in zip(drafter.propose(), range(8))])
    drafter.close()
    return found
