"""Steps in fixed shapes against the same steps as they come: part of the self-test at load, failing closed."""

from collections.abc import Sequence

from torch import Tensor

from opensled.errors import SelfTestFailed
from verify_server.engine.base import Segment
from verify_server.engine.fixed_steps import FixedSteps
from verify_server.engine.packed_model import PackedModel
from verify_server.engine.selftest import RAGGED, check_close, failing_closed, play, same_bits
from verify_server.engine.short_model import num_layers


def check_fixed(model: PackedModel, fixed: FixedSteps, is_exact: bool) -> int:
    """How many steps were fixed. `model` must have its own small memory of NUM_BLOCKS. Raises SelfTestFailed."""
    done = 0

    def run(segments: Sequence[Segment]) -> Tensor:
        nonlocal done
        found = fixed.run(segments)
        done += found is not None
        return found[0].clone() if found else model.run(segments)[0]

    with failing_closed():
        layers = num_layers(model.network)
        plain, _ = play(model, RAGGED, layers)
        # Twice: captured first, then replayed, and each time after other steps in the same memory.
        for given, _ in [play(model, RAGGED, layers, run) for _ in range(2)]:
            if is_exact and not same_bits(given, plain):
                raise SelfTestFailed("a step in a fixed shape has other bits than the same step as it comes")
            for own, expected in zip(given, plain):
                check_close(own, expected, "a step in a fixed shape differs")
    return done
