"""A check at load, failing closed: with a picture in the text the engine agrees with transformers' own model."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from opensled.core.errors import SelfTestFailed
from verify_server.engine.base import ImageRows, Segment
from verify_server.engine.torch.backend_check import TOLERANCE
from verify_server.engine.torch.image_encoder import ImageEncoder
from verify_server.engine.torch.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.selftest import attending_by, failing_closed

BEFORE, BEHIND = 5, 6  # tokens of the text around the picture


def sees_alike(model: PackedModel, eyes: ImageEncoder) -> None:
    """Compares logits behind a picture, computed in two chunks that cut it, with those of the whole model.

    Raises SelfTestFailed. `model` may have any memory: a small one takes its place.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    facts, rows = eyes.facts, eyes.encode(pixels)
    words = [token for token in range(BEFORE + BEHIND + 1) if token != facts.token_id]
    tokens = [*words[:BEFORE], *[facts.token_id] * facts.rows, *words[:BEHIND]]
    with failing_closed():
        given = _packed_logits(model, tokens, ImageRows(BEFORE, rows)).double()
        expected = _plain(eyes, tokens, eyes.prepare(pixels)).double()
    error = ((given - expected).square().mean().sqrt() / expected.std()).item()
    if not error <= TOLERANCE[model.network.dtype]:  # NaN fails, too
        raise SelfTestFailed(
            f"with a picture the engine's logits differ from the model's own by {error:.1e} of their spread (allowed "
            f"{TOLERANCE[model.network.dtype]:.0e}); this model would give wrong tokens"
        )


def _packed_logits(model: PackedModel, tokens: list[int], image: ImageRows) -> Tensor:
    """Logits of the tokens behind the picture, which lies across two chunks."""
    blocks = tuple(range(-(-len(tokens) // BLOCK_SIZE)))
    small = replace(model, memory=KVMemory(len(blocks)))
    cut = BEFORE + len(image.rows) // 2
    small.run([Segment(tuple(tokens[:cut]), 0, blocks, 1, images=(image,))])
    return small.run([Segment(tuple(tokens[cut:]), cut, blocks, BEHIND, images=(image,))])[0]


@torch.inference_mode()
def _plain(eyes: ImageEncoder, tokens: list[int], prepared: Tensor) -> Tensor:
    whole = eyes.whole
    with attending_by(whole.model.language_model, "eager"):
        ids = torch.tensor([tokens], device=whole.device)
        return whole(input_ids=ids, pixel_values=prepared, use_cache=False).logits[0, -BEHIND:]
