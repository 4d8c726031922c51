"""The draft model of the tiny family, drafting by text: `--drafter tests.tiny_by_text:TinyByText`."""

from edge_client.drafters.by_text import ByTextDrafter
from edge_client.drafters.llamacpp import LlamaCppFactory
from edge_client.drafters.model_text import ModelText
from tests.tiny_drafts import tiny_tokenizer


class TinyByText(LlamaCppFactory):
    """Drafts by text only."""

    def create(self) -> ByTextDrafter:
        return ByTextDrafter(ModelText(self.create_model(), self.tokenizer()), tiny_tokenizer(), (0,))
