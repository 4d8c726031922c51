"""Panics of libraries in Rust, such as that of tokenizers at a pattern that never ends: no Exception in Python."""

from collections.abc import Iterator
from contextlib import contextmanager

from opensled.core.errors import ProtocolError, first_line


@contextmanager
def panics_told() -> Iterator[None]:
    """Raises a panic as ProtocolError; as it comes it would pass every handler, and the wait for it would not end."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise ProtocolError(
            f"the tokenizer of this model breaks down at this text: {first_line(error)}"
        ) from None
