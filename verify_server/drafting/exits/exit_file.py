"""An early exit as a folder: an ordinary Llama of n + 1 layers, and `exit.json`, which says what its last layer is.

The folder is a draft model for devices as well. Beside its target only the imitating layer is read from it; embedding,
first layers, final norm and output layer are the target's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from opensled.core.errors import NotFound, UnsupportedModel, first_line

ABOUT, WEIGHTS = "exit.json", "model.safetensors"
ALONE = "exit.safetensors"  # the imitating layer without the rest, in a folder that has the whole as GGUF
FORMAT = 1
_AGAIN = "copy the exit's folder again, or train it anew"


@dataclass(frozen=True)
class ExitFile:
    """What `exit.json` says."""

    folder: Path
    layers: int  # of the target, before the exit; n
    target: str  # its name
    vocabulary: str  # fingerprint of the target's (opensled/core/vocabulary.py)
    config: str  # see `verify_server.drafting.heads.head_file.config_digest`
    training: Mapping[str, Any] = field(default_factory=dict)  # how it was trained and measured, for people

    def save(self) -> None:
        """Written beside and moved: it is there as a whole or not at all."""
        about = {"format": FORMAT, "layers": self.layers, "target": self.target}
        about |= {"vocabulary": self.vocabulary, "config": self.config, "training": dict(self.training)}
        part = self.folder / f"{ABOUT}.part"
        part.write_text(json.dumps(about, indent=2) + "\n")
        part.replace(self.folder / ABOUT)

    def weights(self) -> dict[str, Tensor]:
        """Of the imitating layer, by their names in a layer. Raises NotFound and UnsupportedModel."""
        path, prefix = self.folder / ALONE, f"model.layers.{self.layers}."
        path = path if path.is_file() else self.folder / WEIGHTS
        if not path.is_file():
            raise NotFound(
                f"the exit in {self.folder} lacks its weights: {path} is missing; {_AGAIN}", "exit"
            )
        try:
            with safe_open(path, framework="pt") as file:
                own = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                found = {name.removeprefix(prefix): file.get_tensor(name).clone() for name in own}
        except (SafetensorError, OSError) as error:
            raise UnsupportedModel(f"{path} cannot be read: {first_line(error)}; {_AGAIN}") from error
        if not found or not all(weight.isfinite().all() for weight in found.values()):
            raise UnsupportedModel(f"{path} has no layer {self.layers} of finite numbers; {_AGAIN}")
        return found


def load(folder: Path) -> ExitFile:
    """Raises NotFound and UnsupportedModel."""
    path = folder / ABOUT
    try:
        about = json.loads(path.read_text())
    except OSError as error:
        raise NotFound(
            f"{folder} holds no early exit: {path} cannot be read ({error.strerror}); name the folder of one",
            "exit",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON: {first_line(error)}; {_AGAIN}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UnsupportedModel(f"{path} is not of format {FORMAT}, the only one known here; {_AGAIN}")
    layers, training = about.get("layers"), about.get("training", {})
    if type(layers) is not int or layers < 1 or not isinstance(training, dict):
        raise UnsupportedModel(f"{path} does not say behind how many layers the exit is; {_AGAIN}")
    target, vocabulary, config = (str(about.get(name, "")) for name in ("target", "vocabulary", "config"))
    return ExitFile(folder, layers, target, vocabulary, config, training)
