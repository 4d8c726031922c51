"""The target's tokenizer, as its tokenizer.json has it."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from opensled.bounds import require_unicode
from opensled.errors import ProtocolError
from opensled.token_bytes import BYTE_PIECE, TokenBytes


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """The spelling of ids 0, 1, 2, ...; "" for an id without one."""
    return [tokenizer.id_to_token(token) or "" for token in range(tokenizer.get_vocab_size())]


class TargetTokenizer:
    """Encodes prompts and decodes answers exactly as the server does."""

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # tokenizers raises bare Exception
            raise ProtocolError(f"the server's tokenizer.json cannot be read: {error}") from error
        self._bytes = TokenBytes(self._tokenizer)
        self.special_ids = frozenset(
            token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special
        )

    @property
    def pieces(self) -> list[str]:
        return pieces_of(self._tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text, with the special tokens (such as BOS) that the model adds."""
        return tuple(self._tokenizer.encode(require_unicode(text, "the prompt", "prompt")).ids)

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that already has its special tokens, as chat templates write it."""
        text = require_unicode(text, "the prompt", "prompt")
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def piece(self, token: int) -> str:
        """The spelling of one id; "" for an id without one."""
        return self._tokenizer.id_to_token(token) or ""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole sequence, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one id; of a special token the bytes of its name."""
        return self._bytes.of(token)

    def is_raw_byte(self, token: int) -> bool:
        return BYTE_PIECE.fullmatch(self.piece(token)) is not None
