"""From trained weights to the folder `models/tiny-vision`, as `AutoModelForImageTextToText` reads it."""

from pathlib import Path

import torch
from transformers import (
    CLIPImageProcessorPil,
    GenerationConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from ..eight_bits import round_weights
from ..export import moved_into, patch_json, write_tokenizer
from ..family import END_ID
from .canvas import SIDE
from .scenes import MEAN, STANDARD_DEVIATION


def export(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """float16 on disk, of numbers of 8 bits; the config says float32, so a plain `from_pretrained` computes in that."""
    with moved_into(folder) as scratch:
        model.generation_config = GenerationConfig(eos_token_id=END_ID, pad_token_id=END_ID)
        model.to(torch.float16).save_pretrained(scratch)
        round_weights(scratch)
        model.to(torch.float32)
        patch_json(scratch / "config.json", dtype="float32")
        write_tokenizer(tokenizer, scratch)
        image_processor().save_pretrained(scratch)
        # The name that every version of transformers knows; the suffix picks the one that needs no torchvision.
        patch_json(scratch / "preprocessor_config.json", image_processor_type="CLIPImageProcessor")


def image_processor() -> CLIPImageProcessorPil:
    """Any picture becomes a square of the tower's size; its sides are stretched, nothing is cut off."""
    return CLIPImageProcessorPil(
        size={"height": SIDE, "width": SIDE},
        do_center_crop=False,
        image_mean=[MEAN] * 3,
        image_std=[STANDARD_DEVIATION] * 3,
    )
