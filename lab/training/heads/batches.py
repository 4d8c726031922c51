"""Batches of windows: packed rows, the rows that drafts start from, and what the drafts should be."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lab.training.heads.draft_vocabulary import NONE
from lab.training.heads.windows import Window, read_shard

TOGETHER = 4  # shards whose windows are mixed


@dataclass(frozen=True)
class Aims:
    """What `length` tokens the target wrote, and thought, behind each of B drafts; ids are of the draft vocabulary."""

    tokens: Tensor  # [B, length], the drafted tokens' own; NONE = cannot be drafted
    previous: Tensor  # [B, length], the token before each; NONE as well
    valid: Tensor  # bool [B, length]: the target wrote it and all tokens before it, from the row on
    top: Tensor  # [B, length, TOP], likeliest ids; NONE = cannot be drafted
    probs: Tensor  # [B, length, TOP], the target's; 0 where the id cannot be drafted


@dataclass(frozen=True)
class Batch:
    hidden: Tensor  # [n, taps, d] of all rows, window by window
    positions: Tensor  # [n]
    sizes: list[int]  # rows of each window
    rows: list[Tensor]  # of each window the rows that drafts start from, counted from its beginning
    starts: Tensor  # [B]: the same among all rows
    newest: Tensor  # [B]: the target's id of the token after each of them
    aims: Aims


def batch_of(windows: Sequence[Window], rows: Sequence[np.ndarray], places: np.ndarray, length: int) -> Batch:
    """Drafts of `length` tokens from `rows` of each window; `places` as of draft_vocabulary.py."""
    sizes = [len(window) for window in windows]
    offsets = np.cumsum([0, *sizes[:-1]])
    starts = np.concatenate([offset + own for offset, own in zip(offsets, rows)])
    ends = np.repeat(offsets + sizes, [len(own) for own in rows])
    ids = np.concatenate([window.ids for window in windows]).astype(np.int64)
    positions = np.concatenate([window.first + np.arange(len(window)) for window in windows])
    hidden = np.concatenate([window.hidden for window in windows])
    return Batch(
        torch.from_numpy(hidden).float(),
        torch.from_numpy(positions),
        sizes,
        [torch.from_numpy(own) for own in rows],
        torch.from_numpy(starts),
        torch.from_numpy(ids[starts + 1]),
        _aims(windows, ids, starts, ends, places, length),
    )


def _aims(
    windows: Sequence[Window],
    ids: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    places: np.ndarray,
    length: int,
) -> Aims:
    """Token i of a draft stands two rows and i behind its start; the row before it decides it."""
    own = np.concatenate([window.own for window in windows])
    at = starts[:, None] + 2 + np.arange(length)
    inside = at < ends[:, None]
    at = np.where(inside, at, starts[:, None] + 1)
    valid = np.logical_and.accumulate(inside & own[at], axis=1) & own[starts + 1][:, None]
    top = places[np.concatenate([window.top_ids for window in windows])[at - 1]]
    log_probs = np.concatenate([window.top_log_probs for window in windows])[at - 1].astype(np.float32)
    probs = np.where((top != NONE) & valid[..., None], np.exp(log_probs), 0)
    tokens, previous = places[ids[at]], places[ids[at - 1]]
    return Aims(*map(torch.from_numpy, (tokens, previous, valid, top, probs)))


def drawn_rows(windows: Sequence[Window], most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """For each window at most `most` rows that a head can draft from, in their order."""
    starts = [window.starts() for window in windows]
    return [np.sort(rng.permutation(rows)[:most]) for rows in starts]


def groups_of_windows(
    paths: Sequence[Path], taps: Sequence[int], rows: int, rng: random.Random
) -> Iterator[list[Window]]:
    """All windows of these shards once, in a random order, of about `rows` rows together."""
    order = rng.sample(list(paths), len(paths))
    for begin in range(0, len(order), TOGETHER):
        mixed = [window for path in order[begin : begin + TOGETHER] for window in tapped_windows(path, taps)]
        rng.shuffle(mixed)
        yield from _filled(mixed, rows)


def _filled(windows: Sequence[Window], rows: int) -> Iterator[list[Window]]:
    group: list[Window] = []
    for window in windows:
        group.append(window)
        if sum(map(len, group)) >= rows:
            yield group
            group = []
    if group:
        yield group


def tapped_windows(path: Path, taps: Sequence[int]) -> list[Window]:
    """The windows of a shard from which a draft can start, with the states of `taps` only."""
    shard = read_shard(path)
    chosen = [shard.taps.index(tap) for tap in taps]
    windows = (window for window in shard.windows if len(window.starts()))
    return [replace(window, hidden=window.hidden[:, chosen]) for window in windows]
