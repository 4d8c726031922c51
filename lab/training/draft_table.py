"""The frozen draft table of the tiny family: from the training split alone, so that no held-out task is in it."""

import platform
import random
from collections.abc import Iterator
from pathlib import Path

from edge_client.drafters.tables_command import TableBuilder, finish_table, read_tokenizer
from opensled.drafting import table_file
from opensled.drafting.table_file import TableFile
from opensled.drafting.tables import TableShape

from .family import MODELS_DIR
from .tasks import TASKS
from .tasks.code import RAW_TASK, training_files
from .train_tokenizer import END

TABLE_SEED = 6
ITEMS_PER_TASK = 6000
# The family's tokens are short (2,048 of them): two say about as much as one of a large vocabulary.
SHAPE = TableShape(leader=2, followers=4, leaders=16_384)


def replies(items_per_task: int, seed: int = TABLE_SEED) -> Iterator[str]:
    """What the target is trained to write; the words of users are never drafted."""
    rng = random.Random(seed)
    for task in TASKS:
        for _ in range(items_per_task if task is not RAW_TASK else 0):
            yield "<|assistant|>" + task.draw_from(rng, "train").reply + END


def build(items_per_task: int = ITEMS_PER_TASK, with_code: bool = True) -> TableFile:
    """The table of replies and, `with_code`, of the standard library's modules that are not held out."""
    tokenizer = read_tokenizer("tiny")
    builder = TableBuilder(SHAPE)
    texts = [*replies(items_per_task), *(text + END for text in (training_files() if with_code else ()))]
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        builder.read(encoding.ids)
    source = f"lab.training, train split, seed {TABLE_SEED}, Python {platform.python_version()}"
    return finish_table(builder, tokenizer, source)


def write(models_dir: Path = MODELS_DIR) -> Path:
    path = models_dir / "tiny-draft" / "tiny-draft.table"
    table_file.write(path, build())
    return path
