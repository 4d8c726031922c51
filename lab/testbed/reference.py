"""The reference: what the target alone writes. Every equality test and the demo compare the product with it.

A plain `transformers` forward pass over the whole sequence for every token, without cache or batch, and shared-noise
sampling written a second time. It imports nothing of the product, on purpose: a mistake there must not repeat here.
The rules it follows are written in docs/protocol.md.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

WORD = 2**64


def key_of_seed(seed: int) -> bytes:
    """The noise key of a user's seed: blake2b-128 of the seed as 8 little-endian bytes, two's complement."""
    message = (seed % WORD).to_bytes(8, "little")
    return hashlib.blake2b(message, digest_size=16, person=b"opensled-noise-1").digest()


def _splitmix(x: int) -> int:
    x %= WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


@lru_cache(maxsize=1024)
def noise(key: bytes, position: int, vocab_size: int) -> np.ndarray:
    """Gumbel noise of every token id at `position`, float64, read-only.

    In unbounded Python integers where the product uses wrapping 64-bit arithmetic.
    """
    low, high = (int.from_bytes(half, "little") for half in (key[:8], key[8:]))
    golden = 0x9E3779B97F4A7C15
    row = _splitmix(low ^ _splitmix(high + golden * (position + 1)))
    hashes = [_splitmix(row + golden * (token + 1)) for token in range(vocab_size)]
    uniform = (np.array([value >> 12 for value in hashes], dtype=np.float64) + 0.5) / 2.0**52
    found = -np.log(-np.log(uniform))
    found.setflags(write=False)
    return found


def masked(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> np.ndarray:
    """Logits over temperature (> 0); minus infinity where top-k, then top-p, then min-p removes a token.

    Tokens rank by logit descending, then id ascending. Top-p keeps the shortest ranked prefix that reaches `top_p`.
    Min-p keeps what is at least `min_p` times as probable as the first.
    """
    scaled = logits.astype(np.float64) / temperature
    if not top_k and top_p == 1 and not min_p:
        return scaled
    ranked = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    kept = ranked[:top_k] if top_k else ranked
    if top_p < 1:
        kept = _reach(kept, scaled, top_p)
    kept = [token for token in kept if math.exp(scaled[token] - scaled[kept[0]]) >= min_p]
    result = np.full(len(scaled), -np.inf)
    result[kept] = scaled[kept]
    return result


def _reach(ranked: list[int], scaled: np.ndarray, top_p: float) -> list[int]:
    weights = np.exp(scaled[ranked] - scaled[ranked[0]])
    before = 0.0
    for count, share in enumerate(weights / weights.sum()):
        if before >= top_p:
            return ranked[:count]
        before += share
    return ranked


@dataclass(frozen=True)
class Sampling:
    """The target distribution, and the key of the noise that draws from it; temperature 0 needs no key."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    key: bytes = b""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature > 0 and len(self.key) != 16:
            raise ValueError("sampling with a temperature needs a seed, or a noise key of 16 bytes")

    def scores(self, logits: np.ndarray, position: int, answer: Sequence[int] = ()) -> np.ndarray:
        """What the argmax is taken of; `answer`: the tokens between the prompt and `position`."""
        logits = self.penalized(logits.astype(np.float64), list(answer))
        if self.temperature == 0:
            return logits
        allowed = masked(logits, self.temperature, self.top_k, self.top_p, self.min_p)
        return allowed + noise(self.key, position, len(logits))

    def penalized(self, logits: np.ndarray, answer: list[int]) -> np.ndarray:
        """Logits after the penalties of the tokens in `answer`."""
        logits = logits.copy()
        for token in set(answer):
            factor = self.repetition_penalty
            value = logits[token] / factor if logits[token] > 0 else logits[token] * factor
            logits[token] = value - self.frequency_penalty * answer.count(token) - self.presence_penalty
        return logits

    def draw(self, logits: np.ndarray, position: int, answer: Sequence[int] = ()) -> int:
        """The token at `position`, see `scores`; ties go to the lowest id."""
        return int(np.argmax(self.scores(logits, position, answer)))


@dataclass(frozen=True)
class Lead:
    """How firmly a token stands at its position under teacher forcing."""

    winner: int
    margin: float  # winner's score over the best other one, noise included; infinite if no other is allowed


class Reference:
    """A target model from a folder, run plainly."""

    loader: Any = AutoModelForCausalLM

    def __init__(self, folder: str | Path, dtype: str = "float64") -> None:
        self.folder = Path(folder)
        disable_progress_bar()
        # Not "eager": transformers computes its softmax in float32 whatever the dtype.
        self.model = self.loader.from_pretrained(
            self.folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.eos_ids = _as_set(self.model.generation_config.eos_token_id)
        self.context_length = int(self.model.config.get_text_config(decoder=True).max_position_embeddings)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as it stands, without a chat template."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def render_chat(self, messages: Iterable[Mapping[str, str]]) -> list[int]:
        """Prompt ids of a chat of {"role", "content"}, up to where the assistant's answer begins."""
        return list(
            self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
        )

    @torch.no_grad()
    def logits(self, ids: Sequence[int], last: int = 1) -> np.ndarray:
        """Logits after each of the `last` tokens of `ids`, shape [last, vocabulary], float64."""
        output = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False, logits_to_keep=last)
        return output.logits[0].double().numpy()

    @torch.no_grad()
    def logits_and_states(self, ids: Sequence[int], last: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """`logits`, and the hidden states of a layer at the same tokens, shape [last, size], float64."""
        output = self.model(
            input_ids=torch.tensor([list(ids)]),
            use_cache=False,
            output_hidden_states=True,
            logits_to_keep=last,
        )
        return output.logits[0].double().numpy(), output.hidden_states[layer][0, -last:].double().numpy()

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        noise_key: bytes | None = None,
        max_tokens: int = 256,
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        **further: float,
    ) -> tuple[list[int], str]:
        """The tokens after the prompt, and why they end: "eos", "stop" (a stop id) or "length".

        With a temperature, `noise_key` or else `seed` says which noise. `further`: min_p and penalties (`Sampling`).
        """
        sampling = Sampling(temperature, top_k, top_p, _key(seed, noise_key), **further)
        room = min(max_tokens, self.context_length - len(prompt_ids))
        eos_ids = frozenset() if ignore_eos else self.eos_ids
        ids = list(prompt_ids)
        for _ in range(room):
            ids.append(sampling.draw(self.logits(ids)[0], len(ids), ids[len(prompt_ids) :]))
            if ids[-1] in eos_ids:
                return ids[len(prompt_ids) :], "eos"
            if ids[-1] in stop_ids:
                return ids[len(prompt_ids) :], "stop"
        return ids[len(prompt_ids) :], "length"

    def leads(self, prompt_ids: Sequence[int], tokens: Sequence[int], sampling: Sampling) -> list[Lead]:
        """Teacher forcing: which token wins at the place of each of `tokens`, after the prompt and those before it."""
        rows = self.logits([*prompt_ids, *tokens[:-1]], last=len(tokens))
        start = len(prompt_ids)
        each = enumerate(rows)
        return [lead(sampling.scores(row, start + index, tokens[:index])) for index, row in each]


def lead(scores: np.ndarray) -> Lead:
    """The lead of the winning score."""
    winner = int(np.argmax(scores))
    others = np.delete(scores, winner)
    margin = float(scores[winner] - others.max()) if len(others) else math.inf
    return Lead(winner, margin)


def _key(seed: int | None, noise_key: bytes | None) -> bytes:
    if noise_key:
        return noise_key
    return b"" if seed is None else key_of_seed(seed)


def _as_set(ids: int | Sequence[int] | None) -> frozenset[int]:
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
