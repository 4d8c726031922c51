"""The training loop of draft heads, how their drafts are measured, what targets are asked, and all of it together."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lab.training.heads import capture, command, config, trainer
from lab.training.heads.batches import Aims
from lab.training.heads.config import TrainHeadConfig
from lab.training.heads.draft_vocabulary import NONE
from lab.training.heads.heldout import Walk, agreed, tokens_per_step
from lab.training.heads.losses import LABEL, LEAST, LOSSES
from lab.training.heads.scripts import LENGTH, Asker
from lab.training.heads.trainer import Plan, Trainer
from lab.training.heads.windows import TOP, Shard, save_shard
from lab.training.item import split_of
from opensled.core.errors import NotFound, UsageError
from opensled.core.messages import ChatMessage
from opensled.models.store import model_file
from tests.head_texts import around, collapse, drafts, heldout, pupil_of, saved, window
from tests.head_texts import target as target
from verify_server.drafting.heads.collapse import ROOT, Trie
from verify_server.drafting.heads.head_file import load
from verify_server.text.gguf_text import GgufText

PLAN = Plan("hard", epochs=4, read=64, starts=8, warming=3, measure_steps=5)
STEPS = 4 * 3  # of all epochs; the texts have 192 rows
QUESTIONS = [f"What is {number}?" for number in range(30)]


def new_trainer(target, folder: Path, plan: Plan = PLAN) -> Trainer:
    return Trainer(pupil_of(target, "specformer"), saved(target, folder), heldout(target), folder, plan)


def points(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


def same(one: object, other: object) -> bool:
    """Of states, tensors and what else is kept in a checkpoint."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other


def test_a_run_that_was_stopped_goes_on(target, tmp_path, monkeypatch):
    """With the weights, the optimizer and the best weights that it had."""
    monkeypatch.setattr(trainer, "CHECKPOINT_S", -1.0)  # one after each step
    first, step = new_trainer(target, tmp_path), Trainer._step

    def stopping(self, windows) -> None:
        if self.progress.steps == 7:
            raise KeyboardInterrupt
        step(self, windows)

    monkeypatch.setattr(Trainer, "_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    monkeypatch.setattr(Trainer, "_step", step)
    second = new_trainer(target, tmp_path)
    assert second.progress == first.progress and second.progress.steps == 7
    assert second.progress.rows == 7 * 2 * PLAN.starts and second.progress.best > 0
    assert same(second._head.state_dict(), first._head.state_dict())
    assert same(second._optimizer.state_dict(), first._optimizer.state_dict())
    assert same(second._best, first._best) and not same(second._best, second._head.state_dict())
    second.run()
    assert second.progress.steps == STEPS == second.all_steps
    assert [point["steps"] for point in points(tmp_path)] == [0, 5, 10, STEPS]


def test_a_run_that_has_ended_does_nothing_more(target, tmp_path):
    (first := new_trainer(target, tmp_path)).run()
    seen, curve = first._head.state_dict(), points(tmp_path)
    again = new_trainer(target, tmp_path)
    again.run()
    assert again.progress == first.progress and same(again._head.state_dict(), seen)
    assert points(tmp_path) == curve


def test_another_training_does_not_go_on_from_there(target, tmp_path):
    new_trainer(target, tmp_path).run()
    with pytest.raises(UsageError, match="another loss; remove its folder"):
        new_trainer(target, tmp_path, replace(PLAN, loss="lk"))
    fewer = pupil_of(target, "specformer")
    places = np.where(fewer.places == 3, -1, fewer.places)
    with pytest.raises(UsageError, match="another ids"):
        Trainer(replace(fewer, places=places), saved(target, tmp_path), heldout(target), tmp_path, PLAN)


def test_the_curve_says_where_each_point_stands(target, tmp_path):
    own = new_trainer(target, tmp_path)
    own.run()
    found = points(tmp_path)
    assert [(point["steps"], point["rows"]) for point in found] == [
        (steps, steps * 2 * PLAN.starts) for steps in (0, 5, 10, STEPS)
    ]
    assert found[0]["loss"] is None and all(point["loss"] > 0 for point in found[1:])
    assert max(point["tree"] for point in found) == own.progress.best
    assert tokens_per_step(own.pupil, heldout(target))["tree"] == own.progress.best


def test_training_stops_where_it_no_longer_rises(target, tmp_path, monkeypatch):
    """After three flat points; the head is then the one that was best, if only by a little."""
    seen = []
    script = iter([1.0, 2.0, 2.001, 2.0, 1.5, 9.0])

    def measured(pupil, _) -> dict[str, float]:
        seen.append({name: weight.clone() for name, weight in pupil.head.state_dict().items()})
        return {"chain": 0.0, "tree": next(script)}

    monkeypatch.setattr(trainer, "tokens_per_step", measured)
    own = new_trainer(target, tmp_path, replace(PLAN, epochs=50, patience=3))
    own.run()
    assert own.progress.steps == 20 < own.all_steps and own.progress.best == 2.001
    assert [point["tree"] for point in points(tmp_path)] == [1.0, 2.0, 2.001, 2.0, 1.5]
    assert same(own._head.state_dict(), seen[2]) and not same(seen[2], seen[4])
    assert same(torch.load(tmp_path / "head.pt")["weights"], seen[4])


def test_the_rate_rises_and_falls(target, tmp_path):
    own = new_trainer(target, tmp_path, replace(PLAN, epochs=40))
    rates = []
    for _ in range(own.all_steps + 1):
        rates.append(own._rate())
        own.progress.steps += 1
    assert np.argmax(rates) == PLAN.warming - 1 and math.isclose(max(rates), PLAN.rate, rel_tol=1e-2)
    assert rates[:3] == sorted(rates[:3]) and rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[0] > rates[-1] == 0


def test_texts_without_a_place_to_draft_from_are_refused(target, tmp_path):
    """And not looked through for ever."""
    own = new_trainer(target, tmp_path)
    for path in own._paths:
        save_shard(Shard((0, 1, 2, 3), [window(target, around(0), given=31)]), path)
    with pytest.raises(NotFound, match="no place"):
        own.run()


@pytest.mark.parametrize(
    ("rows", "accepted", "steps", "tokens"),
    [
        (range(8), [2, 9, 9, 1, 9, 0, 0, 3], 5, 11),  # 0, 3, 5, 6, 7
        (range(5), [4, 0, 0, 0, 0], 1, 5),
        ([0, 1, 5, 6, 7], [3, 9, 1, 9, 0], 3, 7),  # row 4 is not the target's: the walk goes on at 5
        ([], [], 0, 0),
    ],
)
def test_a_walk_by_hand(rows, accepted, steps, tokens):
    (walk := Walk()).along(rows, accepted)
    assert (walk.steps, walk.tokens) == (steps, tokens)
    walk.along([3], [1])  # another window begins anew
    assert walk.mean == (tokens + 2) / (steps + 1)


@pytest.mark.parametrize(
    ("kind", "loss", "epochs"), [("specformer", "hard", 2), ("specformer", "hard", 9), ("ctc", "ctc", 20)]
)
def test_tokens_of_a_step_are_those_of_a_server(target, tmp_path, kind, loss, epochs):
    """Which drafts where it stands, and takes what agrees and one token more, as long as the text is the target's."""
    pupil, [held, other] = pupil_of(target, kind), heldout(target, kind)
    plan = replace(PLAN, loss=loss, rate=3e-3, epochs=epochs, measure_steps=50)
    Trainer(pupil, saved(target, tmp_path), [other], tmp_path, plan).run()
    held = replace(held, own=np.arange(26) < 20)
    text, row, steps = held.ids[:20].tolist(), 0, 0
    while row + 2 < len(text):
        [draft] = drafts(pupil, held, np.array([row]))
        pairs = zip(draft, text[row + 2 :])
        row += 1 + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        steps += 1
    assert row > steps  # it has learned a little, or much
    assert tokens_per_step(pupil, [held])["chain"] == round(row / steps, 4)


@pytest.mark.parametrize(
    ("text", "count"), [([5, 8, 6], 2), ([6, 5, 9], 3), ([6, 5, 9, 1], 3), ([7], 0), ([6, -2], 1), ([], 0)]
)
def test_what_of_a_text_is_a_path_of_a_trie(text, count):
    assert agreed(Trie([5, 6, 8, 5, 9], [ROOT, ROOT, 0, 1, 3], [0.0] * 5), text) == count


@pytest.fixture(scope="module")
def tiny() -> GgufText:
    return GgufText(model_file("tiny", "*.gguf"))


def prompts(scripts) -> set[tuple[int, ...]]:
    return {script.parts[0].ids for script in scripts}


def lines_in(folder: Path, lines: list[str]) -> Path:
    (path := folder / "prompts.txt").write_text("\n".join(["", *lines, "  "]))
    return path


@pytest.mark.parametrize("name", ["tiny", pytest.param("some other", marks=pytest.mark.long)])
def test_no_prompt_that_is_held_out_is_learned(tiny, name):
    asker = Asker(name, tiny)
    held, learned = prompts(asker.heldout()), prompts(itertools.islice(asker.scripts(1), 60))
    assert len(held) > 20 and len(learned) > 20 and not held & learned
    again, other = (prompts(itertools.islice(asker.scripts(seed), 9)) for seed in (1, 2))
    assert again < learned and not other <= again


def test_prompts_of_a_file_are_shared_out(tiny, tmp_path):
    asker = Asker("tiny", tiny, lines_in(tmp_path, QUESTIONS))
    held, learned = prompts(asker.heldout()), prompts(itertools.islice(asker.scripts(1), 200))
    rendered = {tiny.render([ChatMessage("user", line)]): split_of(line) for line in QUESTIONS}
    assert held == {ids for ids, split in rendered.items() if split == "heldout"}
    assert learned == {ids for ids, split in rendered.items() if split == "train"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "0 prompts"),
        (["What is 1?"] * 40, "40 prompts"),
        ([f"{number} and{' so on and' * LENGTH}" for number in range(60)], "too long"),
    ],
)
def test_a_file_of_prompts_of_no_use_is_refused(tiny, tmp_path, lines, said):
    path = lines_in(tmp_path, lines)
    with pytest.raises(NotFound, match=said) as caught:
        Asker("tiny", tiny, path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tiny, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\x00\xfe")
    for name in ("binary", "nowhere", "."):
        with pytest.raises(NotFound, match="cannot be read"):
            Asker("tiny", tiny, tmp_path / name)


def test_a_head_is_trained_from_the_first_prompt_to_its_files(tmp_path, monkeypatch):
    """On very little; a second run finds everything done."""
    monkeypatch.setattr(capture, "SHARD_ROWS", 300)
    monkeypatch.setattr(command, "ROWS", 8)
    data = str(lines_in(tmp_path, QUESTIONS))
    config = TrainHeadConfig("tiny", data=data, positions=100, epochs=1, work=str(tmp_path), threads=1)
    assert command.train_head(config) == 0
    found = load(config.shop / "specformer" / "head")
    assert found.target == "tiny" and found.head.shape.kind == "specformer"
    assert found.training["rows"] > 0 and found.training["heldout_tokens_per_step"] >= 1
    kept = {path: path.stat().st_mtime_ns for path in config.shop.rglob("*.npz")}
    command.train_head(config)
    assert {path: path.stat().st_mtime_ns for path in config.shop.rglob("*.npz")} == kept
    assert load(found.folder).training == found.training


# -- losses -------------------------------------------------------------------------------------------------------


TOKENS = 3  # of the draft vocabulary; the blank is the id behind them


def log_probs(count: int, length: int, columns: int, seed: int = 1, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, length, columns, generator=generator, dtype=torch.float64) * spread
    return logits.log_softmax(-1).requires_grad_()


def labelled(tokens: Sequence[Sequence[int]], valid: Sequence[Sequence[bool]] | None = None) -> Aims:
    """What the target wrote, and nothing of what it thought."""
    ids = torch.tensor(tokens)
    written = torch.ones_like(ids, dtype=torch.bool) if valid is None else torch.tensor(valid)
    nothing = torch.zeros(*ids.shape, TOP)
    return Aims(ids, ids.roll(1, 1), written, nothing.long() + NONE, nothing)


def thought(count: int, length: int, columns: int, outside: float = 0.0, seed: int = 2) -> Aims:
    """A target's distributions over some ids of a draft vocabulary; `outside` of it is not in that."""
    rng = np.random.default_rng(seed)
    top = np.full((count, length, TOP), NONE)
    probs = np.zeros((count, length, TOP), np.float32)
    for row, place in itertools.product(range(count), range(length)):
        top[row, place, 1 : columns + 1] = rng.permutation(columns)
        probs[row, place, 1 : columns + 1] = rng.dirichlet(np.ones(columns)) * (1 - outside)
    tokens = torch.from_numpy(top[..., 1])
    valid = torch.ones(count, length, dtype=torch.bool)
    return Aims(tokens, tokens.roll(1, 1), valid, torch.from_numpy(top), torch.from_numpy(probs))


def overlaps(found: Tensor, aims: Aims) -> np.ndarray:
    """Sum of min(p, q) of each place, over a whole vocabulary."""
    head = found.detach().exp().numpy()
    target = np.zeros_like(head)
    for place in np.argwhere(aims.top.numpy() != NONE):
        row, column, rank = (int(each) for each in place)
        target[row, column, aims.top[row, column, rank]] = aims.probs[row, column, rank]
    return np.minimum(head, target).sum(-1)


def by_alignments(frames: np.ndarray, label: list[int]) -> float:
    """-log of the sum over all paths that say the label."""
    paths = itertools.product(range(frames.shape[1]), repeat=len(frames))
    written = [path for path in paths if collapse(path, frames.shape[1] - 1) == label]
    scores = [sum(float(frames[frame, id]) for frame, id in enumerate(path)) for path in written]
    return -float(np.logaddexp.reduce(scores))


@pytest.mark.parametrize("label", [[0, 1], [2, 0], [1, 1]])
def test_ctc_is_the_sum_over_all_alignments(label):
    """Four frames; what stands behind the label cannot be drafted."""
    frames = log_probs(1, 4, TOKENS + 1)
    found = LOSSES["ctc"](frames, labelled([[*label, NONE, 0]]))
    assert found.item() == pytest.approx(by_alignments(frames[0].detach().numpy(), label) / 2, abs=1e-5)


def test_ctc_takes_as_many_tokens_as_the_target_wrote():
    frames = log_probs(1, 8, TOKENS + 1)
    text = [0, 1, 2, 0, 1, 2, 0, 1]
    for count in (1, 3, 8):
        valid = [[place < count for place in range(8)]]
        label = text[: min(count, LABEL)]
        wanted = by_alignments(frames[0].detach().numpy(), label) / len(label)
        assert LOSSES["ctc"](frames, labelled([text], valid)).item() == pytest.approx(wanted, abs=1e-5)


def test_a_label_ends_before_a_token_that_cannot_be_drafted():
    """Not behind it: [0, NONE, 1, 2] is [0], not [0, 1, 2]."""
    frames = log_probs(1, 4, TOKENS + 1)
    found, short = (
        LOSSES["ctc"](frames, labelled([ids])).item() for ids in ([0, NONE, 1, 2], [0, NONE, NONE, NONE])
    )
    assert found == short == pytest.approx(by_alignments(frames[0].detach().numpy(), [0]), abs=1e-5)


@pytest.mark.parametrize("infeasible", [[1, 1, 1, 0], [0, 0, 1, 2], [2, 2, 2, 2]])
def test_a_label_that_the_frames_cannot_write_counts_nothing(infeasible):
    """Beside another one it changes neither the loss nor the gradient of that, and alone it is zero."""
    frames = log_probs(2, 4, TOKENS + 1)
    alone = LOSSES["ctc"](frames[:1], labelled([[0, 1, NONE, NONE]]))
    both = LOSSES["ctc"](frames, labelled([[0, 1, NONE, NONE], infeasible]))
    assert both.item() == pytest.approx(alone.item())
    [gradient] = torch.autograd.grad(both, frames)
    assert gradient[0].abs().sum() > 0 and gradient[1].tolist() == torch.zeros(4, TOKENS + 1).tolist()
    nothing = LOSSES["ctc"](frames[1:], labelled([infeasible]))
    assert nothing.item() == 0 and torch.autograd.grad(nothing, frames)[0].eq(0).all()


@pytest.mark.parametrize("behind", [NONE, 0, 1])
def test_a_label_that_just_fits_counts(behind):
    """Repeats behind its end are none."""
    frames = log_probs(1, 4, TOKENS + 1)
    wanted = by_alignments(frames[0].detach().numpy(), [0, 0, 1]) / 3
    found = LOSSES["ctc"](frames, labelled([[0, 0, 1, behind]], [[True, True, True, False]]))
    assert found.item() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("outside", [0.0, 0.4])
def test_lk_and_tvd_are_those_of_whole_distributions(outside):
    """What is outside of the draft vocabulary is not covered: even a perfect head cannot reach it."""
    found, aims = log_probs(3, 4, 6), thought(3, 4, 6, outside)
    covered = overlaps(found, aims)
    assert LOSSES["lk"](found, aims).item() == pytest.approx(float(-np.log(covered).mean()), rel=1e-5)
    assert LOSSES["tvd"](found, aims).item() == pytest.approx(float(1 - covered.mean()), rel=1e-5)
    perfect = torch.zeros(3, 4, 6).scatter(-1, aims.top[..., 1:7], aims.probs[..., 1:7] / (1 - outside)).log()
    assert LOSSES["tvd"](perfect, aims).item() == pytest.approx(outside, abs=1e-5)
    assert LOSSES["lk"](perfect, aims).item() == pytest.approx(-math.log(1 - outside), abs=1e-5)


def test_cross_entropy_is_under_the_targets_distribution():
    """As far as that can be drafted: the rest is no reason to be unsure among what can be."""
    found, aims = log_probs(2, 3, 5), thought(2, 3, 5, outside=0.3)
    head = found.detach().gather(-1, aims.top[..., 1:6]).numpy()
    target = aims.probs[..., 1:6].numpy() / 0.7
    assert LOSSES["ce"](found, aims).item() == pytest.approx(float(-(target * head).sum(-1).mean()), rel=1e-5)


def test_hard_is_of_the_written_tokens():
    """Those that can be drafted, and that the target wrote itself."""
    found = log_probs(2, 3, 5)
    aims = labelled([[1, NONE, 2], [4, 0, 3]], [[True, True, True], [True, False, False]])
    wanted = -(found[0, 0, 1] + found[0, 2, 2] + found[1, 0, 4]) / 3
    assert LOSSES["hard"](found, aims).item() == pytest.approx(wanted.item())


@pytest.mark.parametrize("name", ["lk", "tvd", "ce"])
def test_a_place_of_which_nothing_can_be_drafted_is_not_asked(name):
    found, aims = log_probs(2, 3, 5), thought(2, 3, 5)
    aims.probs[1] = 0
    part = Aims(*(getattr(aims, field)[:1] for field in Aims.__dataclass_fields__))
    assert LOSSES[name](found, aims).item() == pytest.approx(LOSSES[name](found[:1], part).item())


@pytest.mark.parametrize("name", LOSSES)
def test_where_nothing_is_asked_the_loss_is_nothing(name):
    logits = torch.randn(2, 5, 4, requires_grad=True)
    loss = LOSSES[name](logits.log_softmax(-1), labelled([[NONE] * 5] * 2))
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None and logits.grad.eq(0).all()


@pytest.mark.parametrize("extreme", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("name", LOSSES)
def test_extreme_logits_leave_the_gradient_finite(name, extreme):
    """Both where the head is certain of the right tokens, and where it is certain of others."""
    generator = torch.Generator().manual_seed(5)
    aims = thought(4, 6, 5, outside=0.2)
    for own in (torch.randn(4, 6, 5, generator=generator), -torch.nn.functional.one_hot(aims.tokens, 5)):
        logits = (own.float() * extreme).requires_grad_()
        loss = LOSSES[name](logits.log_softmax(-1), aims)
        loss.backward()
        assert math.isfinite(loss.item()) and loss.item() >= 0
        assert logits.grad is not None and logits.grad.isfinite().all()


def test_a_head_that_gives_nothing_loses_a_bounded_amount():
    """The logarithm of the LK loss ends at LEAST: one lost place must not outweigh all others."""
    aims = thought(1, 1, 2)
    aims.top[..., 2] = NONE
    aims.probs[..., 2] = 0
    logits = torch.zeros(1, 1, 2).scatter(-1, aims.top[..., 1:2], -1e4)
    assert LOSSES["lk"](logits.log_softmax(-1), aims).item() == pytest.approx(-math.log(LEAST))


def test_the_command_names_all_losses():
    """It lists them without importing torch."""
    assert set(config.LOSSES) == set(LOSSES)
