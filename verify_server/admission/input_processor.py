"""Reads and checks the `Open` of a new sequence: the tokens of its prompt, its lengths, its ids and its guide."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from opensled.core.bounds import MAX_CHARACTERS, too_long
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.images import expand, require_none, starts_of
from opensled.core.messages import MAX_PROMPT_LOGPROBS, ChatMessage, Limits, Open, Prompt, is_chat
from opensled.core.protocol import EndRules
from opensled.core.template_variables import read_variables
from verify_server.access.security import Tenants
from verify_server.access.tenant_pool import Spent, TenantPool
from verify_server.engine.base import EngineInfo
from verify_server.round.loaded_model import TextCodec
from verify_server.text.guide import Constraint, GuideCompiler
from verify_server.vision.image_store import ImageStore, PlacedRows

# Characters of text per token: the usual rule of thumb for English.
CHARACTERS = 4
# Threads for texts, and as many for chats; of these for one tenant; for grammars, one for a tenant. Chosen.
THREADS, EACH, GRAMMAR_THREADS = 4, 2, 2


class InputProcessor:
    """Knows the tokenizer, the limits of a sequence, and those of each tenant. All errors are InvalidRequest."""

    def __init__(
        self,
        text: TextCodec,
        info: EngineInfo,
        limits: Limits,
        tenants: Tenants,
        images: ImageStore | None = None,
    ) -> None:
        """`images`: of a target that reads pictures."""
        self.text, self._info, self._limits, self._tenants = text, info, limits, tenants
        self._images = images
        # Ids beyond the tokenizer's are padding of the logits: they have no text, and only the target commits one.
        self.vocab_size = min(text.vocab_size, info.vocab_size)
        self._texts, self._chats = (
            TenantPool("tokenizer", THREADS, EACH),
            TenantPool("chat template", THREADS, EACH),
        )
        self._grammars = TenantPool("grammar", GRAMMAR_THREADS)
        self._guides = GuideCompiler(
            text.tokenizer_json, info.vocab_size, info.eos_ids, text.tool_template, text.calls
        )

    def limits_of(self, tenant: str) -> Limits:
        """Limits of a sequence of this tenant: alone, and with a draft, it fits into the tenant's KV budget."""
        limits, budget = self._limits, self._tenants.limits_of(tenant).kv_tokens
        if not budget:
            return limits
        return replace(limits, context_length=min(limits.context_length, budget - limits.max_draft))

    def ends(self, message: Open, prompt_length: int, tenant: str) -> EndRules:
        """Where the sequence of an `Open` ends."""
        params = message.params
        eos = frozenset() if params.ignore_eos else frozenset(self._info.eos_ids)
        last = min(prompt_length + params.max_tokens, self.limits_of(tenant).context_length)
        return EndRules(eos, frozenset(params.stop_ids), last)

    def check(self, message: Open, prompt_ids: tuple[int, ...], ends: EndRules, tenant: str) -> None:
        """Refuse a new sequence with wrong lengths or ids."""
        self._check_lengths(message, prompt_ids, ends, self.limits_of(tenant).context_length)
        params = message.params
        given = {"prompt": prompt_ids, "stop_ids": params.stop_ids, "logit_bias": dict(params.logit_bias)}
        for name, ids in given.items():
            _check_ids(ids, self.vocab_size, name)
        # A target continues what a target committed, also where its logits are wider than the vocabulary.
        _check_ids(message.committed, self._info.vocab_size, "committed")

    def _check_lengths(
        self, message: Open, prompt_ids: tuple[int, ...], ends: EndRules, context: int
    ) -> None:
        length, answers = len(prompt_ids) + len(message.committed), message.params.max_tokens > 0
        if not prompt_ids:
            raise InvalidRequest("the prompt is empty: the target needs at least one token", "prompt")
        if length >= context + (not answers):
            raise too_long(length, context)
        if length >= ends.last_length + (not answers):
            raise InvalidRequest("all max_tokens are committed already", "max_tokens")
        if message.prompt_logprobs is not None and not self._info.scores_prompts:
            raise Unsupported(
                f"engine {self._info.runtime} has log-probabilities of the answer only; leave prompt_logprobs out",
                "prompt_logprobs",
            )
        told = (1 + (message.prompt_logprobs or 0)) * len(prompt_ids)
        if message.prompt_logprobs is not None and told > MAX_PROMPT_LOGPROBS:
            raise InvalidRequest(
                f"{told} log-probabilities of {len(prompt_ids)} tokens: the maximum for one prompt is "
                f"{MAX_PROMPT_LOGPROBS}; ask for fewer of the likeliest, or send the prompt in parts",
                "prompt_logprobs",
            )

    async def prompt_ids(self, message: Open, tenant: str, spent: Spent | None = None) -> tuple[int, ...]:
        """Token ids of the prompt of an `Open`; `spent` is told the seconds of processor time that they took."""
        limit = self._tenants.limits_of(tenant).max_prompt
        context = self.limits_of(tenant).context_length
        if message.images:
            self._require_images(message)
        ids = await self._encode(message, min(limit or context, context), tenant, spent)
        if is_chat(message.prompt):
            ids = expand(ids, message.images, self._info.images)
        if limit and len(ids) > limit:
            raise InvalidRequest(
                f"a prompt of {len(ids)} tokens; your tenant may send at most {limit}", "prompt"
            )
        return ids

    def _require_images(self, message: Open) -> None:
        if self._images is None:
            require_none(message.images)
        if isinstance(message.prompt, str):
            raise Unsupported("plain text has no places for images; send chat messages", "images")

    async def images(
        self, message: Open, prompt_ids: tuple[int, ...], tenant: str, spent: Spent | None = None
    ) -> tuple[PlacedRows, ...]:
        """The pictures of a new sequence, seen. Raises as `images.starts_of` and `ImageStore.look_up` do."""
        starts = starts_of(prompt_ids, message.images, self._info.images)
        if self._images is None:
            return ()
        seen = [await self._images.look_up(image, tenant, spent) for image in message.images]
        return tuple(map(PlacedRows, starts, seen))

    def length_of(self, message: Open) -> int:
        """Positions of the prompt of an `Open`; an estimate if it is text. Ids hold the positions of pictures."""
        facts = self._info.images
        pictures = len(message.images) * facts.rows if facts and is_chat(message.prompt) else 0
        return length_of(message.prompt) + pictures

    @property
    def grammar_bytes(self) -> Counter[str]:
        """Memory of the grammars of live answers, by tenant."""
        return self._guides.memory.by_tenant

    def close(self) -> None:
        """End its threads and processes; what native code computes is not waited for."""
        if self._images is not None:
            self._images.close()
        for pool in (self._texts, self._chats, self._grammars):
            pool.close()
        self._guides.close()

    async def constraint(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Constraint | None:
        """The mask of a guided answer. A large schema takes seconds to compile: not on the event loop."""
        if message.guide is None or not message.guide.masks:
            return None
        if message.params.ignore_eos:
            raise InvalidRequest(
                "a guided answer ends where its guide says: leave ignore_eos out", "ignore_eos"
            )
        start = partial(self._guides.start, message.guide, message.committed, tenant, prompt_ids)
        return await self._grammars.run(tenant, start)

    async def _encode(self, message: Open, longest: int, tenant: str, spent: Spent | None) -> tuple[int, ...]:
        """Megabytes take seconds to tokenize: not on the event loop, and not at all if they cannot fit."""
        prompt, guide = message.prompt, message.guide
        if isinstance(prompt, str):
            _check_size(len(prompt), longest)
            return await self._texts.run(tenant, partial(self.text.encode, prompt), spent)
        if is_chat(prompt):
            tools = guide.tools if guide else ()
            schemas = sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools)
            _check_size(sum(map(_turn_size, prompt)) + schemas, longest)
            variables = read_variables(message.template_variables)
            return await self._chats.run(tenant, partial(self.text.render, prompt, tools, variables), spent)
        return prompt  # type: ignore[return-value]


def length_of(prompt: Prompt) -> int:
    """Tokens of a prompt; an estimate if it is text."""
    if isinstance(prompt, str):
        return len(prompt) // CHARACTERS
    return sum(map(_turn_size, prompt)) // CHARACTERS if is_chat(prompt) else len(prompt)


def _turn_size(turn: ChatMessage) -> int:
    """Characters that a turn of a chat adds to a prompt."""
    calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in turn.tool_calls)
    return (
        len(turn.role)
        + len(turn.content)
        + len(turn.tool_call_id)
        + len(turn.name)
        + len(turn.reasoning)
        + calls
    )


def _check_size(characters: int, tokens: int) -> None:
    longest = tokens * MAX_CHARACTERS
    if characters > longest:
        raise InvalidRequest(
            f"prompt is too long: {characters} characters of messages and tools > {tokens} tokens maximum; send fewer "
            "of them",
            "prompt",
        )


def _check_ids(ids: Iterable[int], vocab_size: int, name: str) -> None:
    if any(not 0 <= id < vocab_size for id in ids):
        raise InvalidRequest(f"an id of {name} is outside the vocabulary of {vocab_size}", name)
