"""What a server writes as text: the source behind which drafts are tokenized again, for every kind of server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import first_token_s, stream
from edge_client.drafters.by_text import Piece, TextSource
from edge_client.drafters.outage import Outage
from opensled.core.errors import DraftSourceError

BYTES_A_TOKEN = 4  # about, of a text
LAG = 24  # bytes that an open stream may be behind a text that it may agree with (chosen: a few tokens)
NEAR = 200  # bytes of a text that a server reads at once (chosen: a short question)
# Bytes of a text that are sent where the server's context is not known: 4,096 tokens are usual, and one that is full
# makes a server read all anew for each block
MOST = 12_000


class TextDialect(ABC):
    """How one kind of server is asked to go on with a text, greedily."""

    path: str

    @abstractmethod
    def request(self, prompt: str) -> dict[str, Any]:
        """The body of a request for a stream."""

    @abstractmethod
    def read(self, line: bytes) -> Sequence[Piece] | None:
        """The pieces of a line of the answer; None = the stream is complete. Raises DraftSourceError."""


def pieces_of(text: object, is_end: bool, confidence: float = 1.0) -> list[Piece]:
    """Those of one chunk, whose text may be absent; `is_end`: the model ends its answer with it.

    Raises DraftSourceError.
    """
    if text is not None and not isinstance(text, str):
        raise DraftSourceError("its chunk holds no text")
    data = (text or "").encode("utf-8", "replace")
    # All of a long chunk at once would be tokenized again for seconds.
    pieces = [Piece(data[at : at + NEAR], confidence) for at in range(0, len(data), NEAR)]
    return [*pieces, Piece(b"", is_end=True)] if is_end else pieces


class ServedText(TextSource):
    """The continuation of one text by a server. A stream stays open while the text agrees with what it gave."""

    def __init__(self, address: DraftAddress, dialect: TextDialect, outage: Outage, most: int = MOST) -> None:
        """`most`: bytes of a text that are sent."""
        self._address, self._dialect, self._outage, self._most = address, dialect, outage, most
        self.streams = 0  # opened so far
        self._stream: Generator[Piece | None, None, None] | None = None
        self._ahead: deque[Piece] = deque()  # what follows the text
        self._owed = b""  # the end of the text, which the stream has yet to write
        self._said = False  # whether the stream gave anything
        self._interrupted = False
        self._forget()

    def _forget(self) -> None:
        self._text = b""
        self._read = 0  # bytes of the text that the server has read
        self._cut()

    def follow(self, text: bytes) -> None:
        self._interrupted = False
        if text[: len(self._text)] == self._text:
            self._owed += text[len(self._text) :]
            self._text = text
            self._settle()
        else:
            self._read = min(self._read, len(text))
            self._text = text
            self._cut()

    def pieces(self) -> Iterator[Piece]:
        index = 0
        while index < len(self._ahead) or self._pull():
            piece = self._ahead[index]
            yield piece
            if piece.is_end:
                return
            index += 1

    @property
    def behind(self) -> bool:
        return self._outage.is_over and not self._ahead and len(self._text) - self._read > NEAR

    def read(self, most: int) -> bool:
        """Wait a moment for the server to read; it is told the whole text at once."""
        if not self.behind:
            return False
        self._step()
        return True

    def _pull(self) -> bool:
        """Wait for a further piece; False: there is none now."""
        known = len(self._ahead)
        while not self._interrupted and self._step():
            if len(self._ahead) > known:
                return True
        return False

    def _step(self) -> bool:
        """Wait a moment for a further piece; False: there is none now."""
        if not self._outage.is_over:
            return False
        try:
            return self._ask()
        except DraftSourceError as error:
            self._cut()
            self._outage.failed(error)
            return False

    def _ask(self) -> bool:
        """As `_step`. Raises DraftSourceError."""
        if self._owed and (self._stream is None or len(self._owed) > LAG):
            self._cut()
        if self._stream is None and not self._open():
            self._read = len(self._text)
            return False
        assert self._stream is not None
        try:
            piece = next(self._stream)
        except StopIteration:
            said, self._stream = self._said, None
            self._read = len(self._text)
            if self._owed:
                self._cut()
            return said  # another stream may say more
        if piece is not None:
            self._came(piece)
        return True

    def _came(self, piece: Piece) -> None:
        if not self._said:
            self._outage.worked()
        self._said, self._read = True, len(self._text)
        self._ahead.append(piece)
        self._settle()

    def _open(self) -> bool:
        """Ask for what follows; False: the text ends within a character, which no request can hold."""
        whole = self._text + b"".join([piece.text for piece in self._ahead])
        prompt = _latest(whole, self._most)
        if prompt is None:
            return False
        dialect, first_s = self._dialect, first_token_s(len(prompt) // BYTES_A_TOKEN)
        self.streams, self._said = self.streams + 1, False
        begin = partial(stream, self._address, dialect.path, dialect.request(prompt), dialect.read)
        self._stream = self._outage.patient(partial(begin, waited=self._outage.waited), first_s)
        return True

    def _settle(self) -> None:
        """Compare what came with the bytes of the text that the stream still owes."""
        while self._owed and self._ahead:
            piece = self._ahead.popleft()
            if piece.text.startswith(self._owed):
                rest = piece.text[len(self._owed) :]
                self._owed = b""
                if rest or piece.is_end:
                    self._ahead.appendleft(piece._replace(text=rest))
            elif self._owed.startswith(piece.text) and not piece.is_end:
                self._owed = self._owed[len(piece.text) :]
            else:
                self._cut()

    def _cut(self) -> None:
        """Forget what came, and end the stream."""
        self._owed, self._said = b"", False
        self._ahead.clear()
        open_stream, self._stream = self._stream, None
        if open_stream is not None:
            open_stream.close()

    def interrupt(self) -> None:
        self._interrupted = True

    def close(self) -> None:
        self._forget()


def _latest(text: bytes, most: int) -> str | None:
    """About the last `most` bytes of `text`, from a place that stays while it grows; None: it ends within a character.

    Otherwise a text that grew would begin elsewhere for each block, and a server would read all of it anew.
    """
    if len(text) > most:
        step = max(1, most // 2)
        text = text[-(-(len(text) - most) // step) * step :]
        text = text.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return None
        return text.decode("utf-8", "replace")
