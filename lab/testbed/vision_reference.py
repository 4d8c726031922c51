"""The reference of a vision-language target: see reference.py. It imports nothing of the product, on purpose."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from lab.testbed.reference import Reference


class VisionReference(Reference):
    """A Llava-like model from a folder, run plainly: pictures and text together, in transformers' own way."""

    loader = AutoModelForImageTextToText

    def __init__(self, folder: str | Path, dtype: str = "float64") -> None:
        super().__init__(folder, dtype)
        self._processor = AutoImageProcessor.from_pretrained(self.folder, backend="pil")
        self._rows_of_pictures: torch.Tensor | None = None
        self.placeholder = int(self.model.config.image_token_id)

    def show(self, messages: Sequence[Mapping[str, object]], files: Sequence[bytes]) -> list[int]:
        """Prompt ids of a chat for `generate`, which then sees `files`.

        Contents have {"type": "image"} parts, or OpenAI's "image_url", one for each file.
        """
        text = self.tokenizer.apply_chat_template(
            _shown(messages), add_generation_prompt=True, tokenize=False
        )
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        pictures = [np.asarray(Image.open(BytesIO(file)).convert("RGB")) for file in files]
        self._rows_of_pictures = self._seen(pictures) if pictures else None
        rows = self._positions()
        return [each for id in ids for each in [id] * (rows if id == self.placeholder else 1)]

    @torch.no_grad()
    def _seen(self, pictures: list[np.ndarray]) -> torch.Tensor:
        """[positions of all pictures, size]"""
        pixels = self._processor(images=pictures, return_tensors="pt")["pixel_values"]
        features = self.model.get_image_features(pixel_values=pixels.to(self.model.dtype))
        return torch.cat(list(features.pooler_output))

    def _positions(self) -> int:
        """Positions of a picture, from the shape of the vision tower."""
        vision = self.model.config.vision_config
        patches: int = (vision.image_size // vision.patch_size) ** 2
        return patches if self.model.config.vision_feature_select_strategy == "default" else patches + 1

    @torch.no_grad()
    def logits(self, ids: Sequence[int], last: int = 1) -> np.ndarray:
        """See `Reference.logits`; of a text with the pictures that were shown last.

        A target may write the placeholder itself: that one is a token like any other.
        """
        tokens = torch.tensor([list(ids)])
        embedded = self.model.get_input_embeddings()(tokens)
        if self._rows_of_pictures is not None:
            places = (tokens[0] == self.placeholder).nonzero()[: len(self._rows_of_pictures), 0]
            embedded[0, places] = self._rows_of_pictures
        output = self.model(inputs_embeds=embedded, use_cache=False, logits_to_keep=last)
        return output.logits[0].double().numpy()


def _shown(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """With every picture in the form that templates know."""
    return [dict(message) | {"content": _content(message["content"])} for message in messages]


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [{"type": "image"} if part["type"] == "image_url" else part for part in content]
