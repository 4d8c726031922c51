"""A target for real `opensled serve` processes without torch: `--engine tests.fake_target:load`.

It writes ids that are few and depend on the prompt, spelled by the tokenizer of the tiny models, so that a device can
show them and its lookup drafter can guess them.
"""

import hashlib

from opensled.core.vocabulary import fingerprint
from opensled.models.store import model_path
from opensled.text.call_forms import BARE
from opensled.text.tokenizer import TargetTokenizer
from tests.fakes import FakeEngine, FakeText
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel


def load(config: ServeConfig) -> ServedModel:
    return ServedModel("fake", FakeEngine(num_blocks=200, target=cycle), _Text())


def cycle(context: list[int]) -> int:
    """Three tokens over and over, so that looking back finds good drafts; now and then another one."""
    return 40 if len(context) % 17 == 0 else 10 + len(context) % 3


class _Text(FakeText):
    def __init__(self, tokenizer_json: bytes = b"") -> None:
        """`tokenizer_json`: "" = that of the tiny family."""
        self.tokenizer_json = tokenizer_json or (model_path("tiny") / "tokenizer.json").read_bytes()
        self.tokenizer_hash = hashlib.sha256(self.tokenizer_json).hexdigest()
        pieces = TargetTokenizer(self.tokenizer_json).pieces
        self.vocab_size, self.fingerprint = len(pieces), fingerprint(pieces)
        self.chat_template = self.tool_template = "any"
        self.calls = BARE

    def render(self, messages, *more):
        return super().render(messages)
