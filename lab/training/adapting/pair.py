"""A draft model and its target, as they are before anything is learned."""

from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from transformers import LlamaForCausalLM

from lab.training.distil.target_model import load_target
from lab.training.heads.capture import Source, load_source
from opensled.core.errors import UnsupportedModel, VocabularyMismatch
from opensled.models.gguf_file import read_metadata
from opensled.models.store import model_file
from verify_server.text.gguf_text import GgufText


@dataclass(frozen=True)
class Pair:
    """Both in float32, as their GGUF files have them."""

    source: Source  # the target
    draft_file: Path
    draft: LlamaForCausalLM
    draft_text: GgufText

    @property
    def fingerprints(self) -> dict[str, object]:
        """sha256 of both files, and of the vocabulary that they share."""
        target = model_file(self.source.name, "*.gguf")
        return {
            "draft": {"file": self.draft_file.name, "sha256": sha256(self.draft_file)},
            "target": {"file": target.name, "sha256": sha256(target)},
            "vocabulary": self.draft_text.fingerprint,
        }


def load_pair(draft: str, target: str) -> Pair:
    """Raises NotFound, UnsupportedModel, and VocabularyMismatch."""
    path = model_file(draft, "*.gguf")
    for name, file in ((draft, path), (target, model_file(target, "*.gguf"))):
        if (family := read_metadata(file).get("general.architecture")) != "llama":
            raise UnsupportedModel(f"{name} is a {family}; only models of the family llama are adapted")
    source = load_source(target)
    text, network = GgufText(path), load_target(path)
    if text.fingerprint != source.text.fingerprint:
        raise VocabularyMismatch(
            f"{draft} and {target} have other vocabularies, so one cannot draft for the other; take a draft of "
            f"{target}'s family"
        )
    if not network.config.tie_word_embeddings:
        raise UnsupportedModel(f"{draft} has an output layer of its own; only tied ones are adapted")
    return Pair(source, path, network.requires_grad_(True), text)


def sha256(path: Path) -> str:
    """Of a file, hex."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
