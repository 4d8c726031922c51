"""A stand-in for a CUDA graph on a processor: the kernels of one pass as torch dispatched them, run again over the same
tensors. What a pass asked the host in between is not run again, as in a graph, and what a graph cannot hold is refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

# Kernels whose answer goes to the host, or whose shape depends on numbers: a GPU would wait for them.
WAITS = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal", "masked_select", "unique")


class Tape(TorchDispatchMode):
    """Records what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS or (name.startswith("index") and _by_mask(args)):
            raise AssertionError(f"{name} waits for the device in the middle of a pass")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Every kernel again; what it gave before is overwritten where it lies."""
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_flatten(out)[0], tree_flatten(again)[0]):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    @property
    def names(self) -> list[str]:
        return [str(func) for func, *_ in self.calls]


def _by_mask(args: Any) -> bool:
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in tree_flatten(args[1:2])[0])


class TapeCapture:
    """A `Capture` that replays tapes."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        compute()  # as for a graph: libraries load at a first pass
        with Tape() as tape:
            logits = compute()
        self.tapes.append(tape)

        def replay() -> Tensor:
            with torch.inference_mode():
                tape.replay()
            return logits

        return replay
