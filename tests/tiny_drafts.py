"""The committed draft models, and what a server of the tiny family says of itself."""

import hashlib
from functools import cache
from pathlib import Path

from opensled.core.messages import Limits, ModelInfo, RuleFacts
from opensled.core.vocabulary import fingerprint
from opensled.text.call_forms import TAGGED
from opensled.text.tokenizer import TargetTokenizer

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
