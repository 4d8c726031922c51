"""Tokenizer, templates and grammars of the model that vLLM serves."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opensled.core.messages import Guide
from verify_server.engine.base import known_ends
from verify_server.text.guide import Constraint, GuideCompiler
from verify_server.text.hf_text import HFText

log = logging.getLogger("vllm.opensled")

TEXT_FILES = ("*.json", "*.jinja", "*.model", "*.txt")  # of a repository, without its weights
THREADS = 2  # that compile grammars in the process of vLLM's engine


def text_of(model_config: Any) -> HFText:
    """The text side of a model in vLLM's configuration. Raises UnsupportedModel."""
    return HFText(_folder(model_config.tokenizer, model_config.tokenizer_revision))


def _folder(tokenizer: str, revision: str | None) -> Path:
    """The folder with the tokenizer's files; vLLM has downloaded those of a hub id already."""
    if Path(tokenizer).is_dir():
        return Path(tokenizer)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(tokenizer, revision=revision, allow_patterns=list(TEXT_FILES)))


class Grammars:
    """Grammars of guided answers, in the process of vLLM's engine; the front has checked their guides."""

    def __init__(self, model_config: Any) -> None:
        self._config = model_config
        self._threads = ThreadPoolExecutor(THREADS, "opensled grammar")

    def start(
        self, guide: Guide, prompt: tuple[int, ...], committed: tuple[int, ...]
    ) -> Future[Constraint | None]:
        """The constraint of an answer, as soon as it is compiled; None where that fails."""
        return self._threads.submit(self._start, guide, prompt, committed)

    def _start(self, guide: Guide, prompt: tuple[int, ...], committed: tuple[int, ...]) -> Constraint | None:
        try:
            return self._compiler.start(guide, committed, prompt=prompt)
        except Exception:  # vLLM would end with it
            log.exception("a guided answer ends: its grammar failed")
            return None

    @cached_property
    def _compiler(self) -> GuideCompiler:
        text, width = text_of(self._config), int(self._config.get_vocab_size())
        ends = known_ends(text.eos_ids, width)
        return GuideCompiler(text.tokenizer_json, width, ends, text.tool_template, text.calls)


def mask_rows(masks: list[bytes], words: int) -> NDArray[np.int32]:
    """Masks of bits as vLLM takes them: [masks, words]."""
    rows = np.zeros((len(masks), 4 * words), np.uint8)
    for row, mask in zip(rows, masks):
        row[: len(mask)] = np.frombuffer(mask, np.uint8)
    return rows.view(np.int32)
