"""A vision-language model with random weights, and pictures to show it."""

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

SIDE, PATCH = 24, 8
ROWS = (SIDE // PATCH) ** 2
PIECES = ["<end>", "<user>", "<assistant>", "<image>"]
VOCABULARY = 96
PLACEHOLDER = PIECES.index("<image>")
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vision_model(folder: Path, seed: int = 0, kind: str = "llava", **text: object) -> Path:
    """Saves a random Llava-like model with tokenizer and processor to `folder`; `text`: fields of its decoder."""
    decoder = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=0,
        initializer_range=0.2,
        **text,
    )
    tower = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=32,
        initializer_range=0.2,
    )
    seen = {"vision_feature_layers": (-1, -2)} if kind == "vipllava" else {}
    config = AutoConfig.for_model(
        kind, vision_config=tower, text_config=decoder, image_token_index=PLACEHOLDER, eos_token_id=0, **seen
    )
    torch.manual_seed(seed)
    network = AutoModelForImageTextToText.from_config(config)
    network.generation_config.eos_token_id = 0
    network.save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size=size, crop_size=size).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCABULARY - len(PIECES)]
    known = Tokenizer(models.BPE({piece: id for id, piece in enumerate([*PIECES, *letters])}, []))
    known.pre_tokenizer, known.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    known.add_special_tokens(PIECES)
    return PreTrainedTokenizerFast(
        tokenizer_object=known,
        eos_token="<end>",
        additional_special_tokens=PIECES[1:],
        chat_template=TEMPLATE,
    )


def picture(seed: int = 0, kind: str = "PNG", width: int = 40, height: int = 30) -> bytes:
    """The file of a picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()
