"""The opt-in mode `local-only`: while no server can be reached, the draft model answers alone.

No target verifies its text, and every answer that has such text says so.
"""

import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

from edge_client.offline.provisional import SEGMENT
from edge_client.round.commits import Commit
from edge_client.round.drafting import DraftThread
from opensled.core.answer import Origin, Task
from opensled.core.errors import EngineError, InvalidRequest, Overloaded, Unreachable, Unsupported
from opensled.core.messages import ChatMessage, ModelInfo, Open, SamplingParams, Verdict, is_chat
from opensled.core.noise import KEY_BYTES, noise_key
from opensled.core.protocol import EndRules, Truth, cut
from opensled.core.sampling import Sampler
from opensled.core.template_variables import read_variables
from opensled.process.fork_server import OverLimit
from opensled.text.chat_forms import first_taken
from opensled.text.chat_render import ChatRenderer
from opensled.text.control_spellings import Variables
from opensled.text.control_tokens import ControlTokens
from opensled.text.thinking import thoughts_by_key
from opensled.text.tokenizer import TargetTokenizer


@dataclass(frozen=True)
class LocalCommit(Commit):
    """Tokens that the draft model wrote alone."""

    @property
    def origins(self) -> tuple[Origin, ...]:
        """All of them local."""
        origin: Origin = "local"
        return (origin,) * len(self.tokens)


async def local_commits(
    drafter: DraftThread, truth: Truth, params: SamplingParams, key: bytes, ends: EndRules
) -> AsyncGenerator[Commit, None]:
    """Extend `truth` by the draft model's own tokens until it is finished.

    Raises Overloaded if every drafter is busy with other answers, and EngineError if the drafter proposes nothing
    before the end: it has failed, or it cannot write by itself.
    """
    if not drafter.drafts:
        raise Overloaded(
            "no server can be reached, and all drafters are busy (see --parallel) or drafting is switched off",
            retry_after=5.0,
        )
    drafter.begin(truth, Sampler(params, key, prompt_length=truth.prompt_length, alone=True))
    try:
        while not truth.finish_reason:
            block = (await drafter.draft(truth, SEGMENT)).block
            tokens, reason = cut(block.ids, len(truth), ends)
            if not tokens:
                raise EngineError(
                    "no server can be reached, and this drafter cannot answer alone; use a draft model with room for "
                    "the answer, for example --drafter llamacpp"
                )
            truth.extend(Verdict(len(truth), tokens, finish_reason=reason))
            yield LocalCommit(tokens, 0, 0)
    finally:
        drafter.interrupt()


def own_key(params: SamplingParams) -> bytes:
    """The noise key of an answer that no server has opened."""
    return secrets.token_bytes(KEY_BYTES) if params.seed is None else noise_key(params.seed)


def own_prompt(task: Task, info: ModelInfo, tokenizer: TargetTokenizer, template: str) -> tuple[int, ...]:
    """The ids of a prompt that no server has tokenized; `template`: the target's chat template.

    Raises Unsupported for what cannot be rendered here, and Unreachable for a prompt that is empty or too long.
    """
    prompt = task.prompt
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
    elif is_chat(prompt):
        ids = render(prompt, template, info, tokenizer, task.template_variables)
    else:
        ids = prompt  # type: ignore[assignment]
    if not 0 < len(ids) < info.limits.context_length:
        raise Unreachable(
            f"no server can be reached, and a prompt of {len(ids)} tokens does not fit the context"
        )
    return ids


def require_possible(task: Task, error: Unreachable) -> None:
    """Raises Unreachable, with the reason, for an answer that needs the target."""
    if reason := needs_target(task):
        raise Unreachable(f"{error}; {reason}") from error


def needs_target(asked: Task | Open) -> str:
    """Why an answer can come of the target alone; "" = another model may write it."""
    if not asked.params.max_tokens:
        return "only the server can count the tokens of a prompt"
    if asked.top_logprobs is not None or asked.prompt_logprobs is not None:
        return "only the target can give log-probabilities"
    if asked.guide is not None and (asked.guide.masks or asked.guide.tools):
        return "only the server can handle tools and formats of answers"
    if asked.images:
        return "the draft model reads text only, no images"
    return ""


def render(
    messages: Sequence[ChatMessage],
    template: str,
    info: ModelInfo,
    tokenizer: TargetTokenizer,
    variables: str = "",
) -> tuple[int, ...]:
    """Token ids of a chat of texts up to the start of the assistant's next turn; `variables`: as of `Open`.

    Raises Unsupported if this device cannot render the chat, InvalidRequest if the template refuses it.
    """
    if not template:
        raise Unsupported("no server can be reached, and this target has no chat template", "messages")
    if any(turn.tool_calls or turn.tool_call_id for turn in messages):
        raise Unsupported(
            "no server can be reached, and only the server can handle calls of tools", "messages"
        )
    renderer = _renderer(template, tuple(_special(info, tokenizer).items()))

    def text(messages: Sequence[ChatMessage], _: object, given: Variables) -> str:
        turns = [
            {"role": turn.role, "content": turn.content, **thoughts_by_key(template, turn.reasoning)}
            for turn in messages
        ]
        return first_taken([turns], lambda turns: renderer.render(turns, None, given))

    given = read_variables(variables)
    try:
        renderer.start()  # before the clock of `first_taken` runs
        return _control(tokenizer, template).encode(messages, (), text, tokenizer.encode_rendered, given)
    except OverLimit as error:
        raise InvalidRequest(
            f"compiling the chat template on this device takes more than {error}", "messages"
        ) from error
    except EngineError as error:
        raise InvalidRequest(f"the chat template cannot be compiled here: {error}", "messages") from error


@lru_cache(maxsize=1)
def _control(tokenizer: TargetTokenizer, template: str) -> ControlTokens:
    """Of the latest tokenizer and template."""
    return ControlTokens(tokenizer.raw, (template,))


@lru_cache(maxsize=1)
def _renderer(template: str, special: tuple[tuple[str, str], ...]) -> ChatRenderer:
    """The renderer of the latest template; the process of the one before it ends."""
    if find_spec("jinja2") is None:
        raise Unsupported(
            "no server can be reached, and chat messages need jinja2 on this device: pip install jinja2; "
            "texts and token ids (/v1/completions, generate --raw) do not need it",
            "messages",
        )
    return ChatRenderer(template, dict(special))


def _special(info: ModelInfo, tokenizer: TargetTokenizer) -> dict[str, str]:
    """The special tokens that templates use: the first of every text, and the one at its end."""
    frame = tokenizer.encode("")[:1]
    names = {"bos_token": frame, "eos_token": info.eos_ids[:1]}
    return {name: tokenizer.piece(ids[0]) for name, ids in names.items() if ids}
