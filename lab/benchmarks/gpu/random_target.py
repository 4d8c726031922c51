"""A target of a given shape with random weights, made on the device: the time of a step does not depend on the values.

opensled serve --engine lab.benchmarks.gpu.random_target:load --model FOLDER

FOLDER holds the shape and a tokenizer, see `shapes.write_folder`; there are no weights to read. The output layer of a
server's target is so small that the shared noise decides each token, and not how bfloat16 rounds: with other random
weights near ties are everywhere, a batch of another shape would flip tokens, and replayed drafts would be wrong from
then on.
"""

import math
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from lab.benchmarks.gpu.shapes import config_of
from opensled.process.load_thread import in_thread_that_ends
from verify_server.engine.torch import loading, torch_engine
from verify_server.engine.torch.attention import NAME
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.text.hf_text import HFText

USUAL, SMALL = 1.0, 1e-3  # spread of the logits: as of a model, and so small that noise of spread 1.3 decides
SEED = 7


def random_network(shape: str, device: str, dtype: torch.dtype, spread: float = USUAL) -> PreTrainedModel:
    """A decoder of `shapes/SHAPE.json` whose logits have that spread; the same weights for the same device."""
    config = AutoConfig.for_model(**config_of(shape))
    with no_init_weights(), torch.device(device):
        network: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=NAME
        )
    _fill(network, spread)
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def _fill(network: PreTrainedModel, spread: float) -> None:
    """Each matrix keeps the size of what enters it; vectors are the weights of norms."""
    noise = torch.Generator(network.device).manual_seed(SEED)
    for weight in network.parameters():
        if weight.ndim == 1:
            weight.fill_(1.0)
        else:
            weight.normal_(0.0, 1 / math.sqrt(weight.shape[-1]), generator=noise)
    network.get_output_embeddings().weight.mul_(spread)


def engine_of(
    network: PreTrainedModel,
    kv_tokens: int,
    context: int,
    attention: str,
    graphs: str,
    numerics: str,
    max_rows: int = 512,
) -> TorchEngine:
    """The engine around it. Raises the errors of `torch_engine.around`."""
    return torch_engine.around(
        network,
        network.config.model_type,
        lambda _: -(-kv_tokens // BLOCK_SIZE),
        context,
        attention=attention,
        graphs=graphs,
        numerics=numerics,
        max_rows=max_rows,
    )


def load(config: ServeConfig) -> ServedModel:
    """The target of a server whose `--model` is a folder of `shapes.write_folder`, named after its shape."""
    loading.use_threads(config.threads)
    folder, device = Path(config.model), loading.pick_device(config.device)
    text = HFText(folder)

    def make() -> TorchEngine:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        network = random_network(folder.name, str(device), dtype, SMALL)
        return engine_of(
            network,
            config.kv_tokens,
            config.context or network.config.max_position_embeddings,
            config.attention,
            config.graphs,
            config.numerics,
            config.max_step_tokens,
        )

    return ServedModel(folder.name, in_thread_that_ends(make), text)
