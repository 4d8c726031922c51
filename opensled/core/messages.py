"""The nouns that cross a process border, none of which ever changes; protobuf stops at `codec.py`.

Positions count from 0 at the first prompt token; a `base` is a number of committed tokens, prompt included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from opensled.core.errors import InvalidRequest, OpenSledError, RequestError, from_code
from opensled.core.images import Image, ImageFacts, TurnImage

MATCH = "match"  # the default acceptance rule
GUIDE = "guide"  # the capability of a server whose answers can be guided (`Open.guide`)
PENALTIES = "penalties"  # of a server that serves min_p and the penalties of `SamplingParams`

MIN_TEMPERATURE = 1e-6  # logits over a smaller one would overflow, and draw what 0 draws
MAX_BIAS = 100  # OpenAI's range
MAX_BIASES = 1024
MAX_PENALTY = 2  # of all three; OpenAI's range of presence and frequency, vLLM's of repetition
MIN_REPETITION = 1e-6  # a logit over a smaller penalty could overflow
MAX_TOP_LOGPROBS = 20  # OpenAI's limit
# Log-probabilities of one prompt: 131,072 positions with one alternative each. They are held for a slow reader.
MAX_PROMPT_LOGPROBS = 1 << 19
MAX_PACE = 1e6  # tokens/s
MAX_DEVICE = 64  # bytes of the name of a device


def split_name(asked: str, names: Iterable[str]) -> tuple[str, str] | None:
    """The name among `names` that `asked` begins with, and the options after its colon; None = unknown."""
    for name in names:
        if asked == name or asked.startswith(f"{name}:"):
            return name, asked[len(name) + 1 :]
    return None


@dataclass(frozen=True)
class SparseDistribution:
    """A distribution over few token ids; probability = weight / sum of the weights."""

    ids: tuple[int, ...]
    probs: tuple[float, ...]  # weights above 0, which sum to 1 but for rounding


class DraftToken(NamedTuple):
    """One proposed token id."""

    id: int
    confidence: float = 1.0  # chance that it is accepted if all before it are; 1 = its drafter gives none
    drawn_from: SparseDistribution | None = None  # for rules with `draft_probs` only


class TreeNode(NamedTuple):
    """One token of a draft tree."""

    token: DraftToken
    parent: int  # number of an earlier node of the tree; -1 = it follows the truth


@dataclass(frozen=True)
class DraftBlock:
    """k >= 0 draft tokens proposed to follow the first `base` committed tokens: a chain, or a tree.

    A parent stands before its children, so the first n tokens of a tree are a tree; the likeliest come first.
    """

    base: int
    tokens: tuple[DraftToken, ...] = ()
    parents: tuple[int, ...] = ()  # of each token, index into `tokens`, -1 = the base; () = a chain

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple([token.id for token in self.tokens])

    def first(self, length: int) -> DraftBlock:
        """The first `length` tokens of it."""
        is_whole = length >= len(self.tokens)  # nearly always
        return self if is_whole else DraftBlock(self.base, self.tokens[:length], self.parents[:length])


@dataclass(frozen=True)
class SamplingParams:
    """What the target distribution is.

    What changes it applies in this order: logit_bias, the penalties (opensled/core/penalties.py), the mask of a guide,
    temperature, top_k, top_p, min_p.
    """

    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    seed: int | None = None  # None: the server draws a noise key
    # Committed tokens after the prompt; 0: the prompt is counted and nothing computed, or only `Open.prompt_logprobs`
    max_tokens: int = 256
    stop_ids: tuple[int, ...] = ()  # token ids that end the sequence, besides the model's own eos
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # (id, what is added to its logit), before everything else
    min_p: float = 0.0  # least probability relative to the likeliest token's; 0 = off
    presence_penalty: float = 0.0  # of a token that the answer has; 0 = off
    frequency_penalty: float = 0.0  # for each time that it has it; 0 = off
    repetition_penalty: float = 1.0  # divides its logit if it is positive, else multiplies it; 1 = off

    def __post_init__(self) -> None:
        warm = MIN_TEMPERATURE <= self.temperature <= 100
        _check(self.temperature == 0 or warm, "temperature", f"0, or from {MIN_TEMPERATURE:g} to 100")
        _check(0 <= self.top_k < 2**31, "top_k", "from 0 (off) to 2147483647")
        _check(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        _check(self.seed is None or -(2**63) <= self.seed < 2**63, "seed", "a signed 64-bit integer")
        _check(0 <= self.max_tokens < 2**31, "max_tokens", "from 0 to 2147483647")
        _check(len(self.logit_bias) <= MAX_BIASES, "logit_bias", f"at most {MAX_BIASES} ids")
        small = all(-MAX_BIAS <= bias <= MAX_BIAS for _, bias in self.logit_bias)  # also false for NaN
        _check(small, "logit_bias", f"from -{MAX_BIAS} to {MAX_BIAS}")
        distinct = len({id for id, _ in self.logit_bias}) == len(self.logit_bias)
        _check(distinct, "logit_bias", "one entry for each id")
        _check(0 <= self.min_p <= 1, "min_p", "from 0 (off) to 1")
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
            low = MIN_REPETITION if name == "repetition_penalty" else -MAX_PENALTY
            allowed = low <= getattr(self, name) <= MAX_PENALTY  # also false for NaN
            _check(allowed, name, f"from {low:g} to {MAX_PENALTY}")

    @property
    def penalizes(self) -> bool:
        """Whether the logits of a token depend on the tokens before it."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


def _check(ok: bool, name: str, allowed: str) -> None:
    if not ok:
        raise InvalidRequest(f"{name} is out of range: it must be {allowed}", name)


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, as an assistant made it."""

    id: str
    name: str
    arguments: str  # JSON object


@dataclass(frozen=True)
class ChatMessage:
    """One turn of a chat; the server renders it with the target's chat template."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str = ""  # the call that a tool's turn answers
    name: str = ""
    images: tuple[TurnImage, ...] = ()  # by their offsets, ascending
    reasoning: str = ""  # what an assistant thought before `content`; only for templates that read it


Prompt = tuple[int, ...] | str | tuple[ChatMessage, ...]


def is_chat(prompt: Prompt) -> TypeGuard[tuple[ChatMessage, ...]]:
    """Whether a prompt is messages, not text or token ids."""
    return isinstance(prompt, tuple) and bool(prompt) and isinstance(prompt[0], ChatMessage)


@dataclass(frozen=True)
class Tool:
    """A tool that the model may call."""

    name: str
    description: str = ""
    parameters: str = ""  # JSON schema of its arguments; "" = any object
    strict: bool = False  # all of it must be held by the grammar, or the request is refused


@dataclass(frozen=True)
class Guide:
    """The form of an answer: the server masks every token that would break it, before the target samples."""

    json_schema: str = ""  # of the whole answer; "{}" = any JSON object, "" = not asked for
    tools: tuple[Tool, ...] = ()
    tool_choice: str = ""  # "auto": calls or free text; "required": calls only; "none", "": no mask
    function: str = ""  # the only tool that may be called; "" = any
    parallel: bool = False  # several calls may follow each other
    strict: bool = False  # as of a tool, for `json_schema`

    def __post_init__(self) -> None:
        _check(self.tool_choice in ("", "none", "auto", "required"), "tool_choice", "none, auto or required")

    @property
    def masks(self) -> bool:
        """Whether it forbids anything."""
        return bool(self.json_schema) or self.tool_choice in ("auto", "required")

    @property
    def callable(self) -> tuple[str, ...]:
        """Names of the tools that may be called."""
        return tuple(tool.name for tool in self.tools if self.tool_choice in ("auto", "required"))


@dataclass(frozen=True)
class Open:
    """Starts a sequence, or reopens a lost one (then with prompt ids, committed ids and noise key)."""

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    committed: tuple[int, ...] = ()  # ids committed after the prompt so far; they count against max_tokens
    rule: str = MATCH
    noise_key: bytes = b""  # empty: the server derives it from the seed, or draws one
    resume_token: bytes = b""
    model_id: str = ""  # the target that was described; another one must not continue its text. "" = any
    fingerprint: str = ""  # the vocabulary that was described. "" = any
    top_logprobs: int | None = None  # log-probabilities: of committed tokens and so many others; None = no
    prompt_logprobs: int | None = None  # the same of the prompt's tokens, which come with `Prefill`
    guide: Guide | None = None
    pace: float = 0.0  # minimum tokens/s that the user needs; 0 = as fast as possible, without a guarantee
    background: bool = False  # no user waits for the answer: low priority under load
    device: str = ""  # name under which the server keeps its draft statistics; "" = unknown
    takes_unverified: bool = False  # whether the reader accepts tokens that no target verifies, see `Verdict`
    images: tuple[Image, ...] = ()  # of the prompt, in order
    template_variables: str = ""  # of a chat, for its template: JSON object, "" = none

    def __post_init__(self) -> None:
        _check(0 <= self.pace <= MAX_PACE, "pace", f"from 0 to {MAX_PACE:g} tokens/s")
        _check(len(self.device.encode()) <= MAX_DEVICE, "device", f"at most {MAX_DEVICE} bytes")
        for name in ("top_logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            _check(wanted is None or 0 <= wanted <= MAX_TOP_LOGPROBS, name, f"from 0 to {MAX_TOP_LOGPROBS}")


@dataclass(frozen=True)
class Draft:
    """One block on its way to the server; `counter` >= 1 numbers the drafts of a sequence."""

    counter: int
    block: DraftBlock
    seconds: float = 0.0  # that the device took to draft it; 0 = not told


@dataclass(frozen=True)
class Cancel:
    """The reader is gone; the server frees the session."""


@dataclass(frozen=True)
class Limits:
    """The limits of one sequence on this server."""

    max_draft: int  # maximum length of a chain, in tokens
    context_length: int  # maximum number of positions, prompt included
    max_tree: int = 0  # maximum size of a tree, in tokens; 0 = chains only
    min_draft: int = 0  # minimum length of a chain for the full effect of its rule, in tokens; 0 = any


class HintReason(NamedTuple):
    """Why a hint is 0, for people (opensled/drafting/status.py has the words); numbers that are not known are 0."""

    cause: str = ""  # what weighs most: HintCause of verify.proto in small letters; "" = not told
    tokens: int = 0  # of the drafts that the numbers are about
    step_times: float = 0.0  # how many times as long a step over these and one more takes as a step over one
    gain: float = 0.0  # how many times as fast the sequence would be with such drafts
    device_rate: float = 0.0  # tokens/s that the device drafts
    server_rate: float = 0.0  # tokens/s that the server writes without drafts
    delay: float = 0.0  # seconds that a draft is on its way
    accepted: float = 0.0  # tokens of such a draft that would stand


Why = HintReason | None  # of a hint of 0; None = not told


@dataclass(frozen=True)
class Opened:
    """The server's answer to `Open`: all that is needed to reopen the sequence anywhere."""

    prompt_ids: tuple[int, ...]
    noise_key: bytes
    resume_token: bytes
    limits: Limits
    hint: int | None = None  # longest useful first block, as `Verdict.hint`
    draft_probs: bool = False  # whether each draft token must bring the distribution that it was drawn from
    rule: str = MATCH  # of this sequence, with all its options
    # Whose arguments a coarser grammar holds: theirs takes the compiler too long
    coarse_tools: tuple[str, ...] = ()
    why: Why = None  # of `hint`, if it is 0; None = not told


# Log-probabilities at one position, (id, nats): the committed id first, then the likeliest in descending order.
TokenLogprobs = tuple[tuple[int, float], ...]


class PromptToken(NamedTuple):
    """A token of the prompt, as the target would have chosen it."""

    rank: int  # ids at least as likely as it, itself included; 0 = the first position: nothing precedes it
    logprobs: TokenLogprobs  # its own first; at the first position alone, and 0

    @property
    def id(self) -> int:
        return self.logprobs[0][0]


class Verdict(NamedTuple):
    """The truth after `base`: accepted draft tokens, then the recovered or bonus token."""

    base: int
    tokens: tuple[int, ...]  # all since `base`
    num_accepted: int = 0  # how many tokens of the answered draft stand in the truth
    answers: int = 0  # counter of the Draft answered; 0 = decoded unasked
    finish_reason: str = ""  # "" = goes on; else "eos", "stop" (a stop id) or "length" (max_tokens, context)
    hint: int | None = None  # longest useful next block, a tree's depth; 0 = do not draft, None = no advice
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the last of `tokens`, when asked for
    loose: tuple[int, ...] = ()  # indices into `tokens`: draft tokens that are not the target's own
    vetted: int = 0  # of the last of `tokens`, those that a relay wrote and the target has not confirmed
    unverified: int = 0  # of the last before those, the ones that no target will confirm: they are final
    revision: int = 0  # how often vetted tokens were taken back; tells newer verdicts from older ones
    why: Why = None  # of `hint`, if it is 0; None = as told before, or not told


@dataclass(frozen=True)
class Failure:
    """The end of a sequence by error; `code` names a class of `opensled.core.errors`."""

    code: str
    reason: str
    field: str = ""
    retry_after: float = 0.0  # seconds; 0 = unknown

    @staticmethod
    def of(error: Exception) -> Failure:
        """The failure that a peer gets for an exception; the text of an unexpected one stays on this machine."""
        if isinstance(error, RequestError):
            return Failure(error.code, str(error), error.field, error.retry_after)
        if isinstance(error, OpenSledError):
            return Failure(error.code, str(error))
        return Failure(OpenSledError.code, "internal error; the server's log has the details")

    def error(self) -> OpenSledError:
        """The exception of this failure."""
        return from_code(self.code, self.reason, self.field, self.retry_after)


@dataclass(frozen=True)
class Moved:
    """The sequence is served by another server; the device reopens it there with its own copy of the tokens."""

    address: str = ""  # HOST:PORT; "" = where the device asked first
    resume_token: bytes = b""  # b"" = the one the device has


class Prefill(NamedTuple):
    """How far the server has computed the text that it knows; in positions, `cached <= computed <= length`."""

    computed: int  # whose KV is there
    length: int  # of the text
    cached: int = 0  # of `computed`, found in the prefix cache and never computed; until the first verdict
    first: int = 0  # position of the first of
    tokens: tuple[PromptToken, ...] = ()  # tokens of the prompt, if asked for: those that are known now


ClientMessage = Open | Draft | Cancel
ServerMessage = Opened | Verdict | Prefill | Failure | Moved


@dataclass(frozen=True)
class RuleFacts:
    """The facts about an acceptance rule for devices."""

    name: str
    lossless: bool = True  # the text has the target's distribution
    trees: bool = False  # decides draft trees as well as chains
    draft_probs: bool = False  # needs the distribution that each draft token was drawn from


class ThoughtTags(NamedTuple):
    """The texts, or spellings of special tokens, between which a model thinks before it answers, and answers then."""

    start: str
    end: str
    answer_start: str = ""  # "" = the answer has none
    answer_end: str = ""


STYLES = ("json", "tags", "python", "quotes")  # in which the arguments of calls are written


class CallForm(NamedTuple):
    """How a model writes calls of tools: the texts around their parts, see opensled/text/call_forms.py.

    FIRST (HEAD name MIDDLE arguments TAIL) BETWEEN (...) LAST; of a parameter BEFORE_KEY key AFTER_KEY value END.
    """

    first: str = ""
    head: str = ""
    middle: str = ""
    tail: str = ""
    between: str = ""
    last: str = ""
    arguments: str = "json"  # one of STYLES
    before_key: str = ""
    after_key: str = ""
    end: str = ""


@dataclass(frozen=True)
class ModelInfo:
    """The description of a server before the first sequence (`Describe`)."""

    model_id: str
    vocab_size: int  # ids the tokenizer knows; the model's own logits may be padded beyond
    fingerprint: str  # sha256 over the pieces of those ids, see opensled/core/vocabulary.py
    eos_ids: tuple[int, ...]
    limits: Limits
    rules: tuple[RuleFacts, ...]  # acceptance rules this server runs
    numerics: str  # "exact" or "fast", design of levels in docs/protocol.md
    version: str
    tokenizer_hash: str  # sha256 of tokenizer.json; the edge caches it under this name
    has_chat_template: bool
    capabilities: tuple[str, ...] = ()  # GUIDE, PENALTIES, and those of padding.py
    images: ImageFacts | None = None  # None: it reads text alone
    engine: str = ""  # how the target is computed, in words for people
    aliases: tuple[str, ...] = ()  # further names by which HTTP APIs take it
    template_variables: tuple[str, ...] = ()  # that the chat template reads, besides what every chat gives it
    thoughts: ThoughtTags | None = None  # None: it writes none that are known as such
    calls: CallForm | None = None  # None: it writes calls in a form that is not known

    def serves(self, rule: str) -> bool:
        """Whether a sequence may ask for `rule`, a name or a name with options behind a colon."""
        return split_name(rule, self.rule_names) is not None

    @property
    def rule_names(self) -> tuple[str, ...]:
        return tuple(rule.name for rule in self.rules)
