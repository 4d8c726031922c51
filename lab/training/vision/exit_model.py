"""The draft of an exit as a model of its own: the target's first layers and one more, an ordinary Llama."""

import copy
from collections.abc import Iterator

from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from opensled.core.errors import UnsupportedModel, UsageError
from verify_server.engine.torch.tap import places_of


def exit_model(target: PreTrainedModel, layers: int) -> LlamaForCausalLM:
    """A copy of the target's embedding, first `layers` layers, norm and output layer, and of its last layer between.

    All weights are frozen but those of that layer. Raises UnsupportedModel and UsageError.
    """
    own, _ = places_of(target)
    if not 1 <= layers < len(own):
        raise UsageError(
            f"--layers {layers}: a target of {len(own)} layers has exits behind its layers 1 to {len(own) - 1}"
        )
    model = LlamaForCausalLM(_config(target, layers + 1))
    chosen = [*range(layers), len(own) - 1]
    _take(model, dict(_weights(target, chosen)), target)
    model.requires_grad_(False)
    model.model.layers[-1].requires_grad_(True)
    return model.to(target.dtype).eval()


def _config(target: PreTrainedModel, layers: int) -> object:
    config = copy.deepcopy(target.config.get_text_config(decoder=True))
    if config.model_type != "llama":
        raise UnsupportedModel(
            f"exits are trained for targets of Llama's form; this one is a {config.model_type}"
        )
    config.num_hidden_layers = layers
    config.tie_word_embeddings = target.config.tie_word_embeddings
    return config


def _weights(target: PreTrainedModel, chosen: list[int]) -> Iterator[tuple[str, Tensor]]:
    """By their names in a `LlamaForCausalLM`."""
    own, norm = places_of(target)
    yield "model.embed_tokens.weight", target.get_input_embeddings().weight
    for place, number in enumerate(chosen):
        for name, weight in own[number].state_dict().items():
            yield f"model.layers.{place}.{name}", weight
    for name, weight in norm.state_dict().items():
        yield f"model.norm.{name}", weight
    yield "lm_head.weight", target.get_output_embeddings().weight


def _take(model: LlamaForCausalLM, weights: dict[str, Tensor], target: PreTrainedModel) -> None:
    """Copies: what is trained must not be a part of the target."""
    model.to(target.dtype)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UnsupportedModel(f"{type(target).__name__} has other weights than a Llama: {error}") from error
