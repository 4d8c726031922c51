"""A decoder cut to its first layers, among them one of every kind: layers of one kind run the same kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from torch import nn
from transformers import PreTrainedModel

from verify_server.engine.torch.packing import Attend


def enough_layers(network: PreTrainedModel, calls: Sequence[Attend]) -> int:
    """How many of the first layers hold one of every kind; all of them where the layers cannot be told.

    `calls`: what each layer asked of attention in a forward pass.
    """
    place = _layers(network, len(calls))
    if place is None:
        return len(calls)
    kinds = [_kind(layer, call) for layer, call in zip(getattr(*place), calls)]
    return 1 + max(kinds.index(kind) for kind in kinds)


def num_layers(network: PreTrainedModel) -> int:
    """All that it has."""
    count: int = network.config.get_text_config(decoder=True).num_hidden_layers
    return count


@contextmanager
def shorten(network: PreTrainedModel, count: int) -> Iterator[None]:
    """While inside, the network has its first `count` layers only, if they can be told, and gives hidden states for
    logits: the output layer, often the widest matrix of all, would take most of the time."""
    place = _layers(network, num_layers(network))
    layers = getattr(*place) if place else None
    name, head = next(
        (name, part) for name, part in network.named_modules() if part is network.get_output_embeddings()
    )
    network.set_submodule(name, nn.Identity())
    if place:
        setattr(*place, nn.ModuleList(list(getattr(*place))[:count]))
    try:
        yield
    finally:
        network.set_submodule(name, head)
        if place:
            setattr(*place, layers)


def _layers(network: PreTrainedModel, count: int) -> tuple[nn.Module, str] | None:
    """The module that holds the list of the layers, and the name of that list; None if it is not the only one."""
    found = [
        (module, name)
        for module in network.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    return found[0] if len(found) == 1 else None


def _kind(layer: nn.Module, call: Attend) -> object:
    """Equal for two layers that differ in nothing but their weights and their number."""
    parts = [(name, type(part), _shapes(part), _facts(part)) for name, part in layer.named_modules()]
    return replace(call, layer=0), parts


def _shapes(part: nn.Module) -> list[object]:
    tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
    return [(name, tensor.shape, tensor.dtype) for name, tensor in tensors]


def _facts(part: nn.Module) -> dict[str, object]:
    """Settings and functions that a module keeps beside its tensors."""
    kept = {name: value for name, value in vars(part).items() if name != "layer_idx" and _is_fact(value)}
    return {
        name: _identity_of(value) if isinstance(value, partial) else value for name, value in kept.items()
    }


def _is_fact(value: object) -> bool:
    return isinstance(value, (bool, int, float, str, tuple, list, type(None))) or callable(value)


def _identity_of(function: partial[object]) -> object:
    """Two partial functions of the same function and arguments are not equal; these are."""
    return function.func, function.args, function.keywords
