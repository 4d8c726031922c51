"""The draft model as devices run it: a GGUF file in llama.cpp."""

from collections.abc import Sequence

from edge_client.drafters.llamacpp import LlamaCppFactory
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from opensled.core.vocabulary import require_same
from opensled.models.llama import LlamaModel
from opensled.models.store import model_file
from verify_server.text.gguf_text import GgufText


class GgufDrafts:
    """Greedy tokens of a draft model."""

    def __init__(self, draft: str, target: str, text: GgufText, threads: int) -> None:
        """Raises NotFound, UnsupportedModel, and VocabularyMismatch where the target's ids mean something else."""
        pieces = LlamaModel(model_file(draft, "*.gguf")).pieces()
        require_same(draft, pieces, target, text.vocab_size, text.fingerprint)
        self._drafter = LlamaCppFactory(draft, threads).create()

    def begin(self, prompt: Sequence[int]) -> None:
        """See `Drafts`."""
        self._drafter.begin(prompt, Sampler(SamplingParams(temperature=0), noise_key(0)))

    def next(self) -> int | None:
        """See `Drafts`."""
        token = next(self._drafter.propose(), None)
        return None if token is None else token.id

    def take(self, token: int) -> None:
        """See `Drafts`."""
        self._drafter.commit([token])
