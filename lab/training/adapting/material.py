"""What a draft learns from, and the prompts that it is measured on, which it never learns from.

Either the target writes: answers to the prompts of a file, or to its own ones. Or a server has kept what it wrote for
a tenant that asked for it. Shards are those of lab/training/distil.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.training.adapting.config import AdaptConfig
from lab.training.adapting.pair import Pair
from lab.training.distil.self_prompts import Given
from lab.training.distil.self_text import GIVEN, shards, write_shards
from lab.training.distil.shard_batches import ShardText, read_shard
from lab.training.heads.capture import writer_of
from lab.training.heads.scripts import LENGTH, Asker
from lab.training.item import split_of
from opensled.core.errors import NotFound, UsageError, VocabularyMismatch, first_line

TEXTS = "texts"  # folder of shards
ROWS = 96  # texts at once, if so many tokens are wanted
TOKENS_PER_ROW = 1000  # of few tokens too many would belong to texts that are never ended
SEED = 31
MAX_PROBABILITY = 1.01  # of the likeliest tokens together, which are kept in 16 bits
TOP = 32  # likeliest tokens that are learned from at each position; all others are one outcome


def texts_of(pair: Pair, config: AdaptConfig) -> tuple[list[ShardText], list[list[int]]]:
    """The texts to learn from, and the held-out prompts. What is written already is not written again.

    Raises NotFound where there is too little, VocabularyMismatch, and UsageError for damaged files.
    """
    if config.kept:
        folder = Path(config.kept)
        known = read_kept(folder, pair.draft_text.fingerprint, pair.draft.config.vocab_size)
        return _kept(folder, known, config.heldout)
    asker = Asker(config.target, pair.source.text, None if config.data == "self" else Path(config.data))
    scripts = [script.parts[0] for script in asker.heldout()]
    prompts = [list(part.ids) for part in scripts if isinstance(part, Given)]
    folder = config.shop / TEXTS
    _write(pair, asker, folder, config.positions)
    return list(_read(shards(folder))), spread(prompts, config.heldout)


def spread(prompts: list[list[int]], most: int) -> list[list[int]]:
    """`most` of them, from everywhere."""
    return prompts[:: max(1, -(-len(prompts) // most))][:most]


def _write(pair: Pair, asker: Asker, folder: Path, tokens: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    missing = tokens - sum(int((text.roles != GIVEN).sum()) for text in _read(shards(folder)))
    if missing > 0:
        seed = SEED + 1000 * len(shards(folder))
        rows = max(1, min(ROWS, missing // TOKENS_PER_ROW))
        write_shards(writer_of(pair.source, asker.scripts(seed), rows, LENGTH, seed), folder, TEXTS, missing)


def _read(paths: list[Path]) -> Iterator[ShardText]:
    """Without features, which a draft of another size cannot learn from."""
    for path in paths:
        for text in read_shard(path):
            none = np.zeros((len(text.top_ids), 0), np.float16)
            top_ids, top_log_probs = text.top_ids[:, :TOP], text.top_log_probs[:, :TOP]
            yield replace(text, top_ids=top_ids, top_log_probs=top_log_probs, features=none)


def read_kept(folder: Path, vocabulary: str, size: int) -> list[ShardText]:
    """Texts that a server kept of a target whose vocabulary has this fingerprint and so many ids.

    Raises VocabularyMismatch for one of another target, UsageError for one that is damaged.
    """
    texts = []
    for path in shards(folder):
        try:
            with np.load(path) as file:
                own = "vocabulary" in file.files and str(file["vocabulary"]) == vocabulary
            found = list(_read([path])) if own else []
            _check_sound(found, size)
        # numpy raises what its archives, their compression and their headers raise.
        except Exception as error:
            raise UsageError(f"{path} is damaged, remove it: {first_line(error)}") from error
        if not own:
            raise VocabularyMismatch(
                f"{path} was not kept of a target with this vocabulary; name the folder of the target's own texts"
            )
        texts += found
    return texts


def _check_sound(texts: list[ShardText], size: int) -> None:
    """Raises ValueError for what no server keeps: training would fail on it, or learn nonsense."""
    for text in texts:
        written, rows = int((text.roles != GIVEN).sum()), (len(text.top_ids), len(text.top_log_probs))
        if text.ids.ndim != 1 or text.ids.shape != text.roles.shape or text.top_ids.ndim != 2:
            raise ValueError("arrays of other shapes")
        if text.roles[0] != GIVEN or rows != (written, written):
            raise ValueError("rows that are not those of its tokens")
        if text.top_ids.shape != text.top_log_probs.shape or not 0 < text.top_ids.shape[1] <= size:
            raise ValueError("ids and probabilities of two shapes")
        if any(
            each.dtype.kind not in "ui" or (each >= size).any() or (each < 0).any()
            for each in (text.ids, text.top_ids)
        ):
            raise ValueError(f"ids beyond the {size} of the vocabulary")
        if text.top_log_probs.dtype.kind != "f" or not np.isfinite(text.top_log_probs).all():
            raise ValueError("probabilities that are none")
        if (np.exp(text.top_log_probs.astype(np.float64)).sum(-1) > MAX_PROBABILITY).any():
            raise ValueError("probabilities that are more than one together")


def _kept(folder: Path, found: list[ShardText], most: int) -> tuple[list[ShardText], list[list[int]]]:
    """One prompt in 20 is held out, by its hash: the same ones each time, in all texts that begin with it."""
    texts: list[ShardText] = []
    heldout: dict[bytes, list[int]] = {}
    for text in found:
        written = np.flatnonzero(text.roles != GIVEN)
        if not len(written):
            continue
        prompt = text.ids[: written[0]].astype(np.int64)
        if split_of(prompt.tobytes().hex()) == "train":
            texts.append(text)
        else:
            heldout[prompt.tobytes()] = prompt.tolist()
    if not texts or len(heldout) < 2:
        raise NotFound(
            f"{folder} has {len(texts)} texts to learn from and {len(heldout)} prompts to measure on; some 100 texts "
            "are needed, of which a twentieth is held out",
            "kept",
        )
    return texts, spread(list(heldout.values()), most)
