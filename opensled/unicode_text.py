"""Strings that are no text: lone surrogates have no UTF-8 form and crash tokenizers."""

from __future__ import annotations

from opensled.errors import InvalidRequest


def require_unicode(text: str, what: str, field: str) -> str:
    """`text` if it has a UTF-8 form; raises InvalidRequest for `field`, which calls it `what`."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} is not valid Unicode text (a lone surrogate)", field) from error
    return text
