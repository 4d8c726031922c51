"""llama.cpp by itself, through its own Python class: what tests compare with."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import llama_cpp


def plain_llama(path: Path | str, **options: Any) -> llama_cpp.Llama:
    """A model of a GGUF file that keeps the logits of every token.

    Its weights are not rearranged, which ends the process on some processors (llama.py); the class has no
    argument for it.
    """
    with patch.object(llama_cpp.llama_cpp, "llama_model_default_params", _as_stored):
        return llama_cpp.Llama(str(path), logits_all=True, verbose=False, **options)


_default = llama_cpp.llama_model_default_params


def _as_stored() -> llama_cpp.llama_model_params:
    params = _default()
    params.use_extra_bufts = False
    return params
