"""Stage 2: the Triton kernels on the card against a dense formula in float64, bit for bit where they must be, and how
long they take; and the ids that are drawn from logits."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch

from lab.benchmarks.gpu import drawn_ids
from lab.benchmarks.gpu.attention_cases import (
    TOLERANCE,
    Shape,
    Step,
    error,
    full_tree,
    long_step,
    random_step,
)
from lab.benchmarks.gpu.checks import MIN_S, Check, found_by, run_checks
from lab.benchmarks.gpu.stage import Stage
from verify_server.engine.torch.attention import backend_of

# Heads as of real models, and odd ones that no kernel is made for
LLAMA = Shape(kv_heads=8, folded=4, size=128, value_size=128)  # of Llama 3.1 8B, and of Qwen 3 8B
GEMMA = Shape(kv_heads=4, folded=2, size=256, value_size=256, window=4096, softcap=50.0)
ODD = Shape(kv_heads=3, folded=5, size=24, value_size=40, window=300, softcap=2.0)
LITTLE = Shape(kv_heads=1, folded=3, size=16, value_size=16)
HEADS = {"heads of Llama 8B": LLAMA, "heads of Gemma": GEMMA, "odd heads": ODD}
FIRST, OTHERS = torch.bfloat16, (torch.float32, torch.float16, torch.float64)
LONG_TEXTS = (4096, 8192, 8150, 4100)  # tokens
TREE_TEXTS = (1, 16, 511, 512, 640)
STEPS = 4  # random ones of each kind
WINDOWS = (None, 300)  # of the checks of bits; the second one ends in the split before
VOCABULARIES = (49_152, 128_256)
DRAWN = 70  # rows


def measure(stage: Stage) -> None:
    """What matters most comes first: the precision and the heads that are served."""
    has_kernels = _has_kernels(stage)
    if not has_kernels or stage.is_small:
        run_checks(stage, list(planned(stage, has_kernels)))
        return
    stage.tell(first_calls=found_by(lambda: _first_calls(stage)))
    device = torch.device(stage.device)
    run_checks(stage, [*_in(FIRST, device), *_drawing(device, False)])
    _time(stage)
    run_checks(stage, [check for dtype in OTHERS for check in _in(dtype, device)])


def _has_kernels(stage: Stage) -> bool:
    """Without Triton there are none; where it is there, they must load."""
    if find_spec("triton") is None:
        stage.tell(skipped="Triton is not installed here")
        return False
    if stage.is_small and (fault := _fault_of_interpreter()):
        stage.tell(skipped=fault)
        return False
    run_checks(stage, [Check("the kernels load", lambda: {"holds": bool(backend_of("triton"))})])
    return bool(stage.document["checks"][-1]["holds"])


def _fault_of_interpreter() -> str:
    """Why Triton's interpreter cannot run even a kernel of one loop; "" = it can."""
    from lab.benchmarks.gpu.interpreter_probe import count_to

    try:
        counted = count_to(3)
    except Exception as error:  # Triton 3.6 with numpy 2.4: no tensor becomes the end of a loop
        return f"Triton's interpreter does not work with this numpy ({error})"
    return "" if counted == 3 else f"Triton's interpreter counts to {counted} instead of 3"


def planned(stage: Stage, has_kernels: bool) -> Iterator[Check]:
    """Of the miniature; without the kernels, what there is beside them."""
    if has_kernels:
        yield from _in_miniature()
    yield from _drawing(torch.device(stage.device), stage.is_small)


def _in(dtype: torch.dtype, device: torch.device) -> Iterator[Check]:
    """Of one precision, on a GPU."""
    from lab.benchmarks.gpu import kernel_bits as bits

    place = bits.Place(dtype, device)
    for name, shape in HEADS.items():
        yield Check(
            f"errors, {_name(dtype)}, {name}", partial(_errors, partial(_steps, shape), dtype, device)
        )
    for window in WINDOWS if dtype in (torch.bfloat16, torch.float32) else ():
        shape = Shape(8, 4, 128, 128, window)
        name = f"{_name(dtype)}, " + ("no window" if window is None else f"window of {window}")
        alike = partial(bits.same_in_any_company, shape, place, bits.LARGE)
        yield Check(f"bits of a row in any company, {name}", alike)
        yield Check(f"bits of a branch and of its chain, {name}", partial(bits.same_as_chains, shape, place))
    trees = partial(_trees, LLAMA, TREE_TEXTS)
    yield Check(f"largest trees, {_name(dtype)}", partial(_errors, trees, dtype, device))


def _in_miniature() -> Iterator[Check]:
    """In Triton's interpreter. Bits in float64: numpy's float32 product depends on a row's place in the matrix."""
    from lab.benchmarks.gpu import kernel_bits as bits

    device = torch.device("cpu")
    place = bits.Place(torch.float64, device)
    for dtype in (FIRST, *OTHERS):
        yield Check(f"errors, {_name(dtype)}, odd heads", partial(_errors, _small_steps, dtype, device))
    windowed = Shape(1, 3, 16, 16, window=60)
    alike = partial(bits.same_in_any_company, windowed, place, bits.SMALL)
    yield Check("bits of a row in any company, float64, window of 60", alike)
    chains = partial(bits.same_as_chains, LITTLE, place, (30,))
    yield Check("bits of a branch and of its chain, float64, no window", chains)


def _drawing(device: torch.device, is_small: bool) -> Iterator[Check]:
    vocabularies, rows = (VOCABULARIES[:1], 14) if is_small else (VOCABULARIES, DRAWN)
    for size in vocabularies:
        yield Check(f"noise, {size:,} ids", partial(drawn_ids.same_noise, device, size))
        for dtype in (torch.bfloat16, torch.float32):
            same = partial(drawn_ids.same_ids, device, size, rows, dtype)
            yield Check(f"drawn ids, {size:,} ids, {_name(dtype)}", same)
    yield Check("drawn ids where a nucleus ends", partial(drawn_ids.same_at_borders, device, 5000))


def _errors(made: Callable[[], Sequence[Step]], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Of steps as they come and, for each second one, with the branches of trees by path."""
    steps, backend, errors = made(), backend_of("triton"), []
    for number, step in enumerate(steps):
        given = step.by(backend, dtype, number % 2 == 1, device)
        errors.append(error(given, step.expected(dtype, device)))
    worst = max(errors, key=lambda each: math.inf if math.isnan(each) else each)
    tolerance, rows = TOLERANCE[dtype], sum(len(step.query) for step in steps)
    found = {"cases": len(steps), "rows": rows, "largest_error": worst, "tolerance": tolerance}
    return {"holds": worst < tolerance, **found}


@cache
def _steps(shape: Shape) -> Sequence[Step]:
    """Behind random texts, and behind long ones."""
    return [*[random_step(seed, shape=shape) for seed in range(STEPS)], long_step(shape, LONG_TEXTS)]


@cache
def _small_steps() -> Sequence[Step]:
    """The last one sees places of two splits."""
    odd = Shape(1, 5, 24, 40, window=60, softcap=2.0)
    return [random_step(1, 60, 12, 2), long_step(odd, (540,))]


@cache
def _trees(shape: Shape, texts: Sequence[int]) -> Sequence[Step]:
    """Behind each text, for `_errors`: as it comes, and by path."""
    return [full_tree(shape, text) for text in texts for _ in range(2)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_calls(stage: Stage) -> dict[str, Any]:
    """Seconds of first calls, in which a kernel is compiled: Triton makes another one for 1 row, and for 16 n rows."""
    from lab.benchmarks.gpu import kernel_times

    return {"calls": list(kernel_times.first_calls(LLAMA, torch.device(stage.device)))}


def _time(stage: Stage) -> None:
    """Where the bits are wrong the times still count: they are for a kernel of this form."""
    from lab.benchmarks.gpu import kernel_times

    times: list[dict[str, Any]] = []
    for cell in kernel_times.CELLS:
        if stage.left < MIN_S:
            break
        again = partial(kernel_times.timed_attend, LLAMA, cell, torch.device(stage.device))
        times.append({**cell._asdict(), **found_by(again)})
        stage.tell(times=times)
