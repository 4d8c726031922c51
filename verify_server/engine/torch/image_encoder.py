"""The eyes of a vision-language target: a picture becomes rows of embeddings, which stand in the text.

Llava-like families: a vision tower looks at the picture in patches, and a projector gives each patch the size of the
decoder's embeddings (Liu et al., arXiv 2304.08485). The decoder is an ordinary causal language model, and the engine
serves it as one; to it the rows of a picture are tokens whose embedding comes from elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from opensled.core.errors import EngineError, UnsupportedModel, first_line
from opensled.core.images import ImageFacts

# Each picture has the same number of rows in them, positions in a row like a text's, and causal attention everywhere.
FAMILIES = ("llava", "vipllava")
GREY = np.full((32, 32, 3), 127, np.uint8)  # a picture by which the encoder is tried


def sees(config: Any) -> bool:
    """Whether a model reads pictures."""
    return getattr(config, "vision_config", None) is not None


def require_family(config: Any) -> None:
    """Raises UnsupportedModel for a vision-language model whose pictures the engine cannot place."""
    if config.model_type not in FAMILIES:
        raise UnsupportedModel(
            f"{config.model_type} is a vision-language family that the engine does not serve: it may cut pictures in "
            "parts, number their positions in two dimensions, or let them see each other; "
            f"those that it serves are {', '.join(FAMILIES)}"
        )


def decoder_of(whole: PreTrainedModel) -> PreTrainedModel:
    """The decoder of a Llava-like model as a causal language model of its own, with the same weights in memory."""
    text = whole.model.language_model
    with torch.device("meta"), no_init_weights():
        network: PreTrainedModel = AutoModelForCausalLM.from_config(text.config)
    # The configuration is shared, too: it says by which attention the layers attend
    network.model, network.lm_head, network.config = text, whole.lm_head, text.config
    network.generation_config = whole.generation_config
    return network.eval()


class ImageEncoder:
    """Vision tower and projector of one model. A picture is always computed alone, so its bits depend on nothing else.

    May be called from any thread, also during a step.
    """

    def __init__(self, whole: PreTrainedModel, folder: Path) -> None:
        """Raises UnsupportedModel if the folder does not say how pictures are prepared, or the model fails on one."""
        self.whole = whole
        self._processor = _processor(folder)
        vocabulary = whole.config.get_text_config(decoder=True).vocab_size
        token_id = whole.config.image_token_id
        if not 0 <= token_id < vocabulary:
            raise UnsupportedModel(
                f"the placeholder of pictures (id {token_id}) is outside the model's vocabulary of {vocabulary}"
            )
        try:
            self.facts = ImageFacts(token_id, len(self.encode(GREY)))
        except Exception as error:
            raise UnsupportedModel(f"the model cannot read a picture: {first_line(error)}") from error

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        """What the vision tower is given: [1, 3, height, width], from the pixels [height, width, 3] of a picture."""
        values: Tensor = self._processor(images=pixels, return_tensors="pt")["pixel_values"]
        return values.to(self.whole.device, self.whole.dtype)

    @torch.inference_mode()
    def encode(self, pixels: NDArray[np.uint8]) -> Tensor:
        """The rows [positions, size] of a picture [height, width, 3]. Raises EngineError for NaN."""
        features = self.whole.model.get_image_features(pixel_values=self.prepare(pixels))
        [rows] = getattr(features, "pooler_output", features)
        if not bool(rows.isfinite().all()):
            raise EngineError("the vision tower gave NaN or infinity for this image")
        return rows


def _processor(folder: Path) -> Any:
    try:
        return AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds
        raise UnsupportedModel(
            f"{folder} does not say how pictures are prepared (preprocessor_config.json): {first_line(error)}"
        ) from error
