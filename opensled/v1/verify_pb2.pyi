from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HintCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HINT_UNTOLD: _ClassVar[HintCause]
    HINT_STEP: _ClassVar[HintCause]
    HINT_DEVICE: _ClassVar[HintCause]
    HINT_LINK: _ClassVar[HintCause]
    HINT_ACCEPTANCE: _ClassVar[HintCause]
    HINT_OTHERS: _ClassVar[HintCause]
    HINT_OPERATOR: _ClassVar[HintCause]
    HINT_QUOTA: _ClassVar[HintCause]
    HINT_REJECTED: _ClassVar[HintCause]
    HINT_REQUEST: _ClassVar[HintCause]
    HINT_UNTRIED: _ClassVar[HintCause]
HINT_UNTOLD: HintCause
HINT_STEP: HintCause
HINT_DEVICE: HintCause
HINT_LINK: HintCause
HINT_ACCEPTANCE: HintCause
HINT_OTHERS: HintCause
HINT_OPERATOR: HintCause
HINT_QUOTA: HintCause
HINT_REJECTED: HintCause
HINT_REQUEST: HintCause
HINT_UNTRIED: HintCause

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("model_id", "vocab_size", "fingerprint", "eos_ids", "limits", "rules", "numerics", "version", "tokenizer_hash", "has_chat_template", "capabilities", "images", "engine", "aliases", "thoughts", "template_variables", "calls")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    THOUGHTS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    vocab_size: int
    fingerprint: str
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    limits: Limits
    rules: _containers.RepeatedCompositeFieldContainer[RuleFacts]
    numerics: str
    version: str
    tokenizer_hash: str
    has_chat_template: bool
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    images: ImageFacts
    engine: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    thoughts: ThoughtTags
    template_variables: _containers.RepeatedScalarFieldContainer[str]
    calls: str
    def __init__(self, model_id: _Optional[str] = ..., vocab_size: _Optional[int] = ..., fingerprint: _Optional[str] = ..., eos_ids: _Optional[_Iterable[int]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., rules: _Optional[_Iterable[_Union[RuleFacts, _Mapping]]] = ..., numerics: _Optional[str] = ..., version: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., has_chat_template: _Optional[bool] = ..., capabilities: _Optional[_Iterable[str]] = ..., images: _Optional[_Union[ImageFacts, _Mapping]] = ..., engine: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., thoughts: _Optional[_Union[ThoughtTags, _Mapping]] = ..., template_variables: _Optional[_Iterable[str]] = ..., calls: _Optional[str] = ...) -> None: ...

class ThoughtTags(_message.Message):
    __slots__ = ("start", "end", "answer_start", "answer_end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ANSWER_START_FIELD_NUMBER: _ClassVar[int]
    ANSWER_END_FIELD_NUMBER: _ClassVar[int]
    start: str
    end: str
    answer_start: str
    answer_end: str
    def __init__(self, start: _Optional[str] = ..., end: _Optional[str] = ..., answer_start: _Optional[str] = ..., answer_end: _Optional[str] = ...) -> None: ...

class ImageFacts(_message.Message):
    __slots__ = ("token_id", "rows", "most", "max_bytes")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    rows: int
    most: int
    max_bytes: int
    def __init__(self, token_id: _Optional[int] = ..., rows: _Optional[int] = ..., most: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class RuleFacts(_message.Message):
    __slots__ = ("name", "lossless", "trees", "draft_probs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOSSLESS_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
    name: str
    lossless: bool
    trees: bool
    draft_probs: bool
    def __init__(self, name: _Optional[str] = ..., lossless: _Optional[bool] = ..., trees: _Optional[bool] = ..., draft_probs: _Optional[bool] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_draft", "context_length", "max_tree", "min_draft")
    MAX_DRAFT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_FIELD_NUMBER: _ClassVar[int]
    MIN_DRAFT_FIELD_NUMBER: _ClassVar[int]
    max_draft: int
    context_length: int
    max_tree: int
    min_draft: int
    def __init__(self, max_draft: _Optional[int] = ..., context_length: _Optional[int] = ..., max_tree: _Optional[int] = ..., min_draft: _Optional[int] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerReply(_message.Message):
    __slots__ = ("tokenizer_json", "chat_template")
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    tokenizer_json: bytes
    chat_template: str
    def __init__(self, tokenizer_json: _Optional[bytes] = ..., chat_template: _Optional[str] = ...) -> None: ...

class GetDraftRequest(_message.Message):
    __slots__ = ("file", "offset")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class GetDraftReply(_message.Message):
    __slots__ = ("manifest", "part", "failure")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    manifest: SignedManifest
    part: bytes
    failure: Failure
    def __init__(self, manifest: _Optional[_Union[SignedManifest, _Mapping]] = ..., part: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class SignedManifest(_message.Message):
    __slots__ = ("manifest", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    signature: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("open", "draft", "cancel", "padding")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    open: Open
    draft: Draft
    cancel: Cancel
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., padding: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("opened", "verdict", "failure", "moved", "prefill", "padding")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    failure: Failure
    moved: Moved
    prefill: Prefill
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., prefill: _Optional[_Union[Prefill, _Mapping]] = ..., padding: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("ids", "text", "chat", "committed", "params", "rule", "noise_key", "resume_token", "model_id", "fingerprint", "pace", "background", "device", "top_logprobs", "prompt_logprobs", "guide", "takes_unverified", "images")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    NOISE_KEY_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GUIDE_FIELD_NUMBER: _ClassVar[int]
    TAKES_UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    ids: Ids
    text: str
    chat: Chat
    committed: _containers.RepeatedScalarFieldContainer[int]
    params: SamplingParams
    rule: str
    noise_key: bytes
    resume_token: bytes
    model_id: str
    fingerprint: str
    pace: float
    background: bool
    device: str
    top_logprobs: int
    prompt_logprobs: int
    guide: Guide
    takes_unverified: bool
    images: _containers.RepeatedCompositeFieldContainer[Image]
    def __init__(self, ids: _Optional[_Union[Ids, _Mapping]] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., committed: _Optional[_Iterable[int]] = ..., params: _Optional[_Union[SamplingParams, _Mapping]] = ..., rule: _Optional[str] = ..., noise_key: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., model_id: _Optional[str] = ..., fingerprint: _Optional[str] = ..., pace: _Optional[float] = ..., background: _Optional[bool] = ..., device: _Optional[str] = ..., top_logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., guide: _Optional[_Union[Guide, _Mapping]] = ..., takes_unverified: _Optional[bool] = ..., images: _Optional[_Iterable[_Union[Image, _Mapping]]] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("digest", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    data: bytes
    def __init__(self, digest: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class Ids(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages", "variables")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    variables: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., variables: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id", "name", "images", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    name: str
    images: _containers.RepeatedScalarFieldContainer[int]
    reasoning: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., images: _Optional[_Iterable[int]] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Guide(_message.Message):
    __slots__ = ("json_schema", "tools", "tool_choice", "function", "parallel", "strict")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: str
    function: str
    parallel: bool
    strict: bool
    def __init__(self, json_schema: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[str] = ..., function: _Optional[str] = ..., parallel: _Optional[bool] = ..., strict: _Optional[bool] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters", "strict")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    strict: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop_ids", "ignore_eos", "logit_bias", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("id", "bias")
    ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    id: int
    bias: float
    def __init__(self, id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("counter", "base", "tokens", "parents", "draft_probs", "seconds", "confidences")
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    counter: int
    base: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    draft_probs: _containers.RepeatedCompositeFieldContainer[SparseDistribution]
    seconds: float
    confidences: bytes
    def __init__(self, counter: _Optional[int] = ..., base: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., draft_probs: _Optional[_Iterable[_Union[SparseDistribution, _Mapping]]] = ..., seconds: _Optional[float] = ..., confidences: _Optional[bytes] = ...) -> None: ...

class SparseDistribution(_message.Message):
    __slots__ = ("ids", "probs")
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROBS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    probs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., probs: _Optional[_Iterable[float]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Opened(_message.Message):
    __slots__ = ("prompt_ids", "noise_key", "resume_token", "limits", "hint", "draft_probs", "rule", "coarse_tools", "why")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    NOISE_KEY_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    COARSE_TOOLS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    noise_key: bytes
    resume_token: bytes
    limits: Limits
    hint: int
    draft_probs: bool
    rule: str
    coarse_tools: _containers.RepeatedScalarFieldContainer[str]
    why: HintReason
    def __init__(self, prompt_ids: _Optional[_Iterable[int]] = ..., noise_key: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., hint: _Optional[int] = ..., draft_probs: _Optional[bool] = ..., rule: _Optional[str] = ..., coarse_tools: _Optional[_Iterable[str]] = ..., why: _Optional[_Union[HintReason, _Mapping]] = ...) -> None: ...

class HintReason(_message.Message):
    __slots__ = ("cause", "tokens", "step_times", "gain", "device_rate", "server_rate", "delay", "accepted")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_RATE_FIELD_NUMBER: _ClassVar[int]
    SERVER_RATE_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    cause: HintCause
    tokens: int
    step_times: float
    gain: float
    device_rate: float
    server_rate: float
    delay: float
    accepted: float
    def __init__(self, cause: _Optional[_Union[HintCause, str]] = ..., tokens: _Optional[int] = ..., step_times: _Optional[float] = ..., gain: _Optional[float] = ..., device_rate: _Optional[float] = ..., server_rate: _Optional[float] = ..., delay: _Optional[float] = ..., accepted: _Optional[float] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("address", "resume_token")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    address: str
    resume_token: bytes
    def __init__(self, address: _Optional[str] = ..., resume_token: _Optional[bytes] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("base", "tokens", "num_accepted", "answers", "finish_reason", "hint", "logprobs", "loose", "vetted", "unverified", "revision", "why")
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOOSE_FIELD_NUMBER: _ClassVar[int]
    VETTED_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    base: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    num_accepted: int
    answers: int
    finish_reason: str
    hint: int
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprobs]
    loose: _containers.RepeatedScalarFieldContainer[int]
    vetted: int
    unverified: int
    revision: int
    why: HintReason
    def __init__(self, base: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., num_accepted: _Optional[int] = ..., answers: _Optional[int] = ..., finish_reason: _Optional[str] = ..., hint: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[Logprobs, _Mapping]]] = ..., loose: _Optional[_Iterable[int]] = ..., vetted: _Optional[int] = ..., unverified: _Optional[int] = ..., revision: _Optional[int] = ..., why: _Optional[_Union[HintReason, _Mapping]] = ...) -> None: ...

class Prefill(_message.Message):
    __slots__ = ("computed", "length", "cached", "first", "tokens")
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    computed: int
    length: int
    cached: int
    first: int
    tokens: _containers.RepeatedCompositeFieldContainer[Logprobs]
    def __init__(self, computed: _Optional[int] = ..., length: _Optional[int] = ..., cached: _Optional[int] = ..., first: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Logprobs, _Mapping]]] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("ids", "logprobs", "rank")
    IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    rank: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., rank: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "reason", "field", "retry_after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    field: str
    retry_after: float
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ..., field: _Optional[str] = ..., retry_after: _Optional[float] = ...) -> None: ...
