"""Small heads made and computed by the `speculators` package itself, for tests/test_published_heads.py to be equal to.

The package wants a transformers of its own, so this runs in its environment and imports nothing of ours:

    make speculators-check                                           # makes new heads, and runs the tests on them
    build/speculators/bin/python tests/published_heads.py tests/golden/heads     # those that are committed

Beside each head's folder `NAME.safetensors` holds a text's ids and hidden states, and what the package's forward pass
says behind some places of it: logits along its own likeliest chain.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig  # type: ignore[import-not-found]
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig  # type: ignore[import-not-found]
from speculators.proposals.greedy import GreedyTokenProposalConfig  # type: ignore[import-not-found]
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

VOCABULARY, SIZE, LENGTH, CHAIN = 61, 16, 40, 4
PLACES = (1, 2, 15, 16, 17, 31, 39)  # newest tokens: on both sides of the ends of KV blocks
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": SIZE,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
# By name: the layer, what the head is told, how many ids it drafts, and whether its file has the embedding
HEADS: dict[str, tuple[Any, dict[str, Any], int, bool]] = {
    "llama": (LlamaConfig(**SIZES), {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, VOCABULARY, True),
    "llama-scaled": (
        LlamaConfig(**SIZES, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True),
        {
            "eagle_aux_hidden_state_layer_ids": [0, 1, 3, 4],
            "norm_before_fc": True,
            "norm_before_residual": True,
        },
        23,
        True,
    ),
    "qwen3": (Qwen3Config(**SIZES, attention_bias=True), {"norm_before_residual": True}, 23, True),
    "qwen3-output": (
        Qwen3Config(**SIZES, rope_parameters=YARN),
        {"fc_norm": True, "norm_output": True, "eagle_aux_hidden_state_layer_ids": [4, 1]},
        23,
        False,
    ),
}


def made(layer: Any, told: dict[str, Any], drafted: int) -> Any:
    """A head of any weights, every part of which counts."""
    layer._attn_implementation = "eager"
    proposals = [GreedyTokenProposalConfig(speculative_tokens=CHAIN)]
    verifier = VerifierConfig(name_or_path=None, architectures=[])
    about = SpeculatorsConfig(
        algorithm="eagle3", proposal_methods=proposals, default_proposal_method="greedy", verifier=verifier
    )
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer, draft_vocab_size=drafted, speculators_config=about, **told
        )
    ).float()
    with torch.no_grad():
        for weight in model.parameters():
            spread = 0.3 if weight.ndim < 2 else 2 * weight.shape[-1] ** -0.5
            weight.copy_(torch.randn_like(weight) * spread + (weight.ndim < 2))
    if drafted < VOCABULARY:
        ids = torch.randperm(VOCABULARY)[:drafted].sort().values
        known = torch.zeros(VOCABULARY, dtype=torch.bool)
        known[ids] = True
        model.load_vocab_mappings(known, ids - torch.arange(drafted))
    return model.eval()


@torch.inference_mode()
def said(model: Any, ids: Tensor, hidden: Tensor, place: int, chain: list[int]) -> Tensor:
    """Logits behind the newest token at `place` and the drafted tokens `chain`, of the package's forward pass."""
    logits: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda *passed: logits.append(passed[2]))
    # As in training: a row is a token beside the hidden states of the token before, and a later pass reads the token
    # that stands so many rows behind.
    row, text = place - 1, torch.cat([ids[1 : place + 1], torch.tensor(chain, dtype=torch.int64)])
    states = torch.zeros(len(text), hidden[0].numel())
    states[:place] = hidden[:place].flatten(1)
    model(states[None], text[None], torch.zeros(1, len(text), dtype=torch.int64), ttt_steps=len(chain) + 1)
    hook.remove()
    return logits[-1][0, row]


def expected(model: Any, ids: Tensor, hidden: Tensor) -> dict[str, Tensor]:
    chains, logits = [], []
    targets = torch.arange(model.draft_vocab_size) + (0 if model.d2t is None else model.d2t)
    for place in PLACES:
        chain: list[int] = []
        for _ in range(CHAIN):
            logits.append(said(model, ids, hidden, place, chain))
            chain.append(int(targets[logits[-1].argmax()]))
        chains.append(chain)
    shape = (len(PLACES), CHAIN, -1)
    return {
        "chains": torch.tensor(chains),
        "logits": torch.stack(logits).view(shape),
        "places": torch.tensor(PLACES),
    }


def write(folder: Path, name: str, seed: int) -> None:
    torch.manual_seed(seed)
    layer, told, drafted, own_embedding = HEADS[name]
    model = made(layer, told, drafted)
    model.save_pretrained(folder / name)
    (folder / name / "config.py").unlink(missing_ok=True)  # code, which nobody here runs
    table = model.embed_tokens.weight.detach().clone()
    if not own_embedding:
        weights = folder / name / "model.safetensors"
        kept = {key: tensor for key, tensor in load_file(weights).items() if key != "embed_tokens.weight"}
        save_file(kept, weights)
    ids = torch.randint(0, VOCABULARY, (LENGTH,))
    hidden = torch.randn(LENGTH, model.fc.in_features // SIZE, SIZE)
    text = {"ids": ids, "hidden": hidden, "table": table}
    save_file(text | expected(model, ids, hidden), folder / f"{name}.safetensors")


if __name__ == "__main__":
    to, first = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    to.mkdir(parents=True, exist_ok=True)
    for place, head in enumerate(HEADS):
        write(to, head, first + place)
