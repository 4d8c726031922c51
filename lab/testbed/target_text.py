"""The tokenizer of a model that may be a GGUF file or a folder, without its weights."""

from opensled.models.model_kind import is_gguf
from opensled.models.store import model_file, model_path
from opensled.text.tokenizer import TargetTokenizer
from verify_server.round.loaded_model import TextCodec


def text_of(model: str) -> TextCodec:
    """Tokenizer and chat template of a target, as a server has them. Raises NotFound or UnsupportedModel."""
    path = model_path(model)
    if is_gguf(path):
        from verify_server.text.gguf_text import GgufText

        return GgufText(model_file(model, "*.gguf"))
    from verify_server.text.hf_text import HFText

    return HFText(path)


def tokenizer_of(model: str) -> TargetTokenizer:
    """With which devices decode; raises as `text_of` does."""
    file = model_path(model) / "tokenizer.json"
    return TargetTokenizer(file.read_bytes() if file.is_file() else text_of(model).tokenizer_json)
