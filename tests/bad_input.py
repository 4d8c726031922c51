"""Everything a peer can get wrong over gRPC: the rows of the tables in docs/protocol.md, "Bad input"."""

from dataclasses import dataclass

from opensled.core import bounds
from opensled.core.bounds import MAX_CHARACTERS
from opensled.core.messages import (
    MAX_BIASES,
    ChatMessage,
    ClientMessage,
    Draft,
    DraftBlock,
    DraftToken,
    Guide,
    Open,
    SamplingParams,
)
from opensled.v1 import verify_pb2 as pb
from tests.fakes import POISON, VOCAB
from tests.frames import (
    MAX_TOKENS,
    PROMPT,
    Frames,
    after_open,
    bias,
    chat,
    drafting,
    each,
    guided,
    opening,
    sourced,
    text,
)
from verify_server.access.client_limits import message_bytes
from verify_server.round.checks import MAX_CANDIDATES

# What the server under test takes.
WIDTH = VOCAB + 2  # of its logits: the ids VOCAB and VOCAB + 1 are padding
CONTEXT = 400  # positions
MAX_DRAFT, MAX_TREE = 8, 12  # tokens
PADDED, BEYOND, HUGE = VOCAB, WIDTH, 2**32 - 1
NAN, INF = float("nan"), float("inf")

# What becomes of the sequence.
NEVER, ENDS, GOES_ON = "is not opened", "ends", "goes on"
LINGERS = "waits a minute for its reader"


@dataclass(frozen=True)
class Row:
    """One thing to get wrong. Every case of it has the same answer."""

    sent: str
    code: str  # of the Failure; in capitals: gRPC status; "" = none
    field: str
    reason: str  # a part of it
    session: str
    cases: tuple[Frames, ...]
    trusting: bool = False  # at a server that serves rule `ratio`


CANCEL = pb.ClientMessage(cancel=pb.Cancel()).SerializeToString()
NOT_UTF8 = b"\x0a\x03\x12\x01\xff"  # Open{text: one byte that is no UTF-8}
CUT_OFF = b"\x0a\x7f\x12"
PADDING = pb.ClientMessage(padding=[bytes(100)]).SerializeToString()
UNKNOWN_KIND = b"\xa2\x06\x00"  # field 100 of ClientMessage
UNKNOWN_FIELD = b"\x98\x06\x01"  # field 99: 1
LIMIT = message_bytes(CONTEXT, VOCAB)  # of a message
LARGE = LIMIT - 1000  # parts of one byte each that a message may just hold
BIG = text("a" * 10_000_000)
TOOL = {"name": "f", "parameters": '{"type": "object"}'}

ids = "is outside the vocabulary"
range_ = "is out of range"
parts, longer = "a message may have at most", "it may have at most"

OPENING = (
    Row("no prompt", "invalid_request", "prompt", "the prompt is missing", NEVER, each(opening(None))),
    Row("an empty one: no ids, no text, no turns", "invalid_request", "prompt", "the prompt is empty", NEVER,
        each(opening(()), text(""), chat())),
    Row("a prompt id at or above `vocab_size` of `Describe`: padding of the logits, or beyond them",
        "invalid_request", "prompt", ids, NEVER, each(*(opening((1, id)) for id in (PADDED, BEYOND, HUGE)))),
    Row("a committed id beyond the target's logits", "invalid_request", "committed", ids, NEVER,
        each(*(opening(committed=[1, id]) for id in (BEYOND, HUGE)))),
    Row("a committed id that is padding: the target may have sampled it", "", "", "", GOES_ON,
        each(opening(committed=[PADDED, PADDED + 1]))),
    Row("a prompt that leaves no room in the context", "invalid_request", "prompt", "prompt is too long", NEVER,
        each(opening([1] * CONTEXT), opening([1] * 5000), opening([1] * LARGE), text("a" * CONTEXT),
             opening(committed=[1] * CONTEXT), opening(committed=[1] * LARGE))),
    Row("more characters than could be tokens of the context", "invalid_request", "prompt", "characters", NEVER,
        each(text("a" * (CONTEXT * MAX_CHARACTERS + 1)), text("a" * LARGE))),
    Row("a chat of more characters than that, whichever fields hold them", "invalid_request", "prompt",
        "characters", NEVER, each(chat(pb.ChatMessage(role="user", name="a" * LARGE)))),
    Row("a chat, to a target without a chat template", "unsupported", "messages", "no chat template", NEVER,
        each(chat(pb.ChatMessage(role="user", content="Hi")))),
    Row("turns, or calls in them, without end", "invalid_request", "messages", parts, NEVER,
        each(chat(*[pb.ChatMessage()] * (bounds.MAX_TURNS + 1)),
             chat(pb.ChatMessage(tool_calls=[pb.ToolCall()] * (bounds.MAX_TURNS + 1))))),
    Row("variables of a chat template that are no JSON object, take more than 16 KiB, or that every chat sets",
        "invalid_request", "template_variables", "variable", NEVER,
        each(*(chat(pb.ChatMessage(role="user"), variables=sent)
               for sent in ("[]", "{", '{"a": "' + "é" * 9000 + '"}', '{"messages": []}', '{"eos_token": ""}')))),
    Row("as many committed ids as `max_tokens`", "invalid_request", "max_tokens", "committed already", NEVER,
        each(opening(committed=[1] * MAX_TOKENS))),
    Row("`temperature` below 0, above 100, between 0 and 1e-6, NaN or infinite", "invalid_request", "temperature",
        range_, NEVER, each(*(opening(temperature=value) for value in (-1, 100.5, 1e-7, NAN, INF, -INF)))),
    Row("`top_p` below 0, above 1, NaN or infinite", "invalid_request", "top_p", range_, NEVER,
        each(*(opening(top_p=value) for value in (-0.1, 1.1, NAN, INF)))),
    Row("`top_k` above 2147483647", "invalid_request", "top_k", range_, NEVER,
        each(*(opening(top_k=value) for value in (2**31, HUGE)))),
    Row("`min_p` below 0, above 1, NaN or infinite", "invalid_request", "min_p", range_, NEVER,
        each(*(opening(min_p=value) for value in (-0.1, 1.1, NAN, INF)))),
    *(Row(f"`{name}` below -2, above 2, NaN or infinite", "invalid_request", name, range_, NEVER,
          each(*(opening(**{name: value}) for value in (-2.1, 2.1, NAN, INF, -INF))))
      for name in ("presence_penalty", "frequency_penalty")),
    Row("`repetition_penalty` below 0, between 0 and 1e-6, above 2, NaN or infinite", "invalid_request",
        "repetition_penalty", range_, NEVER,
        each(*(opening(repetition_penalty=value) for value in (-1, 1e-7, 2.1, NAN, INF)))),
    Row("`max_tokens` above 2147483647", "invalid_request", "max_tokens", range_, NEVER,
        each(*(opening(max_tokens=value) for value in (2**31, HUGE)))),
    Row(f"more than {bounds.MAX_STOP_IDS} stop ids, equal ones included", "invalid_request", "stop_ids", parts, NEVER,
        each(opening(stop_ids=range(bounds.MAX_STOP_IDS + 1)), opening(stop_ids=[1] * (bounds.MAX_STOP_IDS + 1)),
             opening(stop_ids=[1] * LARGE))),
    Row("a stop id at or above `vocab_size`", "invalid_request", "stop_ids", ids, NEVER,
        each(*(opening(stop_ids=[id]) for id in (PADDED, HUGE)))),
    Row(f"more than {MAX_BIASES} biases", "invalid_request", "logit_bias", parts, NEVER,
        each(bias(*[(1, 0.0)] * (MAX_BIASES + 1)), bias(*[(0, 0.0)] * 20_000))),
    Row("a bias beyond 100 either way, NaN or infinite", "invalid_request", "logit_bias", range_, NEVER,
        each(*(bias((1, value)) for value in (100.5, -101, NAN, INF, -INF)))),
    Row("two biases of one id", "invalid_request", "logit_bias", "one entry for each id", NEVER,
        each(bias((1, 1.0), (1, 2.0)))),
    Row("a bias of an id at or above `vocab_size`", "invalid_request", "logit_bias", ids, NEVER,
        each(*(bias((id, 1.0)) for id in (PADDED, HUGE)))),
    Row("`top_logprobs` above 20", "invalid_request", "top_logprobs", range_, NEVER,
        each(*(opening(top_logprobs=value) for value in (21, HUGE)))),
    Row("`prompt_logprobs` above 20", "invalid_request", "prompt_logprobs", range_, NEVER,
        each(*(opening(prompt_logprobs=value) for value in (21, HUGE)))),
    Row("an unknown rule", "unsupported", "rule", "choose from match", NEVER,
        each(*(opening(rule=name) for name in ("telepathy", "MATCH", "x" * bounds.MAX_NAME)))),
    Row("a rule of more than 1024 characters", "invalid_request", "rule", longer, NEVER,
        each(opening(rule="x" * (bounds.MAX_NAME + 1)), opening(rule="x" * LARGE))),
    Row("rule `ratio` at a server that does not trust devices", "unsupported", "rule",
        "--trust-device-probabilities", NEVER, each(opening(rule="ratio"))),
    Row("a loose rule that the server does not serve", "unsupported", "rule", "--loose-rules", NEVER,
        each(*(opening(rule=name) for name in ("fly", "pad:sigma=1", "fly:theta=0,window=0")))),
    Row("options for a rule that takes none", "invalid_request", "rule", "takes no options", NEVER,
        each(*(opening(rule=name) for name in ("match:x", "match:theta=0")))),
    Row("a noise key that is not 16 bytes", "invalid_request", "noise_key", "must be 16 bytes", NEVER,
        each(opening(noise_key=b"short"), opening(noise_key=bytes(17)))),
    Row("a resume token of another server, a forged one, or none", "", "", "", GOES_ON,
        each(*(opening(resume_token=token) for token in (b"x", bytes(32) + b"[1, 'local', 9e9]",
                                                         b"x" * bounds.MAX_TOKEN)))),
    Row("a resume token of more than 4096 bytes", "invalid_request", "resume_token", longer, NEVER,
        each(opening(resume_token=b"x" * (bounds.MAX_TOKEN + 1)), opening(resume_token=b"x" * LARGE))),
    Row("another target's name", "not_found", "model_id", "this server serves", NEVER,
        each(opening(model_id="other"), opening(model_id="x" * bounds.MAX_MODEL))),
    Row("a target's name of more than 4096 characters", "invalid_request", "model_id", longer, NEVER,
        each(opening(model_id="x" * (bounds.MAX_MODEL + 1)))),
    Row("another vocabulary's fingerprint", "vocabulary_mismatch", "", "is not the one the device knows", NEVER,
        each(opening(fingerprint="other"))),
    Row("a fingerprint of more than 1024 characters", "invalid_request", "fingerprint", longer, NEVER,
        each(opening(fingerprint="x" * (bounds.MAX_NAME + 1)))),
    Row("`pace` out of range", "invalid_request", "pace", "tokens/s", NEVER,
        each(opening(pace=-1.0), opening(pace=1e7), opening(pace=NAN))),
    Row("`device` too long", "invalid_request", "device", "at most 64 bytes", NEVER, each(opening(device="x" * 65))),
    Row("a field this version does not know", "", "", "", GOES_ON, each(opening() + UNKNOWN_FIELD)),
)  # fmt: skip

GUIDES = (
    Row("a schema that is no JSON object, or none that an answer can fulfil", "invalid_request", "response_format",
        "", NEVER, each(*(guided(json_schema=schema) for schema in ("{", "[]", "[" * 100_000, '{"enum": []}')))),
    Row("a schema with more than 20000 schemas in it", "invalid_request", "response_format", "make it simpler", NEVER,
        each(guided(json_schema='{"anyOf": [' + "{}, " * 20_000 + "{}]}"))),
    Row("parameters of a tool that are no schema of an object", "invalid_request", "tools", "the parameters of", NEVER,
        each(*(guided(tools=[pb.Tool(name="f", parameters=schema)], tool_choice="auto")
               for schema in ("{", "1", '{"type": "array"}')))),
    Row("a tool's name of more than 1024 characters, or its description of more than 131072", "invalid_request",
        "tools", longer, NEVER, each(guided(tools=[pb.Tool(name="x" * (bounds.MAX_NAME + 1))]),
                            guided(tools=[pb.Tool(name="f", description="x" * (bounds.MAX_DESCRIPTION + 1))]))),
    Row("tools without end", "invalid_request", "tools", parts, NEVER,
        each(guided(tools=[pb.Tool()] * (bounds.MAX_TOOLS + 1)))),
    Row("an unknown `tool_choice`, or one that no tool can meet", "invalid_request", "tool_choice", "", NEVER,
        each(guided(tools=[pb.Tool(**TOOL)], tool_choice="perhaps"), guided(tool_choice="required"),
             guided(tools=[pb.Tool(**TOOL)], tool_choice="required", function="g"))),
    Row("a guide and `ignore_eos`", "invalid_request", "ignore_eos", "ends where its guide says", NEVER,
        each(opening(guide=pb.Guide(json_schema="{}"), ignore_eos=True))),
    Row("committed ids that break the guide", "truth_conflict", "", "break the grammar", NEVER,
        each(opening(guide=pb.Guide(json_schema="{}"), committed=[2]))),
)  # fmt: skip

DRAFTING = (
    Row("a draft numbered 0", "invalid_request", "counter", "numbered from 1", ENDS,
        after_open(drafting(1, counter=0))),
    Row("a draft whose number is not above the last one's", "", "", "", GOES_ON,
        ((opening(), drafting(counter=5), drafting(1, counter=5), drafting(HUGE, counter=4)),)),
    Row("`base` in the future", "future_base", "", "only", ENDS,
        after_open(*(drafting(1, base=base) for base in (CONTEXT, HUGE)))),
    Row("`base` inside the prompt", "invalid_request", "base", "inside the prompt", ENDS,
        after_open(*(drafting(1, base=base) for base in (0, len(PROMPT) - 1)))),
    Row("a stale draft: other tokens were committed since its `base`", "", "", "", GOES_ON,
        ((opening(), drafting(2, 2, 2), drafting(3, 3, counter=2), drafting(counter=3)),)),
    Row("a `base` repeated", "", "", "", GOES_ON,
        ((opening(), drafting(2), drafting(2, counter=2), drafting(counter=3)),)),
    Row("more draft tokens than `Limits.max_draft`", "invalid_request", "tokens", "takes at most", ENDS,
        after_open(drafting(*[1] * (MAX_DRAFT + 1)), drafting(*[1] * bounds.MAX_BLOCK))),
    Row("draft tokens without end", "invalid_request", "tokens", parts, ENDS,
        after_open(drafting(*[1] * (bounds.MAX_BLOCK + 1)), drafting(*[1] * LARGE))),
    Row("a draft id at or above `vocab_size`", "invalid_request", "tokens", ids, ENDS,
        after_open(*(drafting(1, id) for id in (PADDED, BEYOND, HUGE)))),
    Row("`draft_probs` under a rule that takes none", "unsupported", "draft_probs", "leave draft_probs unset", ENDS,
        after_open(sourced([1], [1.0]))),
    Row("more tokens of a tree than `Limits.max_tree`", "invalid_request", "tokens", "draft tree of", ENDS,
        after_open(*(drafting(*[1] * count, parents=[-1] * count) for count in (MAX_TREE + 1, bounds.MAX_BLOCK)))),
    Row("more or fewer `confidences` than tokens", "invalid_request", "confidences", "confidences for", ENDS,
        after_open(drafting(1, 1, confidences=b"1"), drafting(1, confidences=b"12"), drafting(confidences=b"1"),
                   drafting(1, confidences=b"1" * LARGE))),
    Row("more or fewer `parents` than tokens", "invalid_request", "parents", "parents for", ENDS,
        after_open(drafting(1, 1, parents=[-1]), drafting(1, parents=[-1, 0]), drafting(parents=[-1]),
                   drafting(1, parents=[-1] * LARGE))),
    Row("a parent that is no earlier token", "invalid_request", "parents", "earlier draft token", ENDS,
        after_open(*(drafting(1, 1, parents=parents) for parents in ([-1, 1], [0, -1], [-1, -2], [-1, 2**31 - 1])))),
    Row("a tree with a path told twice", "", "", "", GOES_ON,
        ((opening(), drafting(2, 2, 3, parents=[-1, -1, 1]), drafting(counter=2)),)),
    Row("`padding` that nobody asked for", "", "", "", GOES_ON, after_open(drafting() + PADDING)),
)  # fmt: skip


def _ratio(sent: str, reason: str, *frames: bytes) -> Row:
    return Row(
        sent, "invalid_request", "draft_probs", reason, ENDS, after_open(*frames, rule="ratio"), trusting=True
    )


RATIO = (
    _ratio("rule `ratio`: a draft without `draft_probs`", "needs the distribution", drafting(1)),
    _ratio("rule `ratio`: more or fewer distributions than tokens", "distributions for",
           drafting(1, 1, draft_probs=[pb.SparseDistribution(ids=[1], probs=[1.0])]),
           drafting(draft_probs=[pb.SparseDistribution()] * 20_000)),
    _ratio("rule `ratio`: more or fewer probabilities than ids", "probabilities",
           sourced([1, 2], [1.0]), sourced([1], [0.5, 0.5]), sourced([1], [])),
    _ratio(f"rule `ratio`: more than {MAX_CANDIDATES} ids in a distribution", "are taken",
           sourced(range(MAX_CANDIDATES + 1), [1.0] * (MAX_CANDIDATES + 1))),
    _ratio("rule `ratio`: ids of distributions without end", parts,
           sourced([1] * (bounds.MAX_NAMED + 1), [1.0]), sourced([1], [1.0] * (bounds.MAX_NAMED + 1) )),
    _ratio("rule `ratio`: an id twice in a distribution", "holds an id twice", sourced([1, 1], [0.5, 0.5])),
    _ratio("rule `ratio`: an id at or above `vocab_size` in a distribution", "has an id outside",
           *(sourced([1, id], [0.5, 0.5]) for id in (PADDED, BEYOND, HUGE))),
    _ratio("rule `ratio`: a probability that is 0, negative, NaN or infinite", "not positive and finite",
           *(sourced([1, 2], [value, 1.0]) for value in (0.0, -0.5, NAN, INF, -INF))),
    _ratio("rule `ratio`: probabilities that do not sum to 1", "does not sum to 1",
           sourced([1, 2], [0.5, 0.4]), sourced([1], [3e38])),
    _ratio("rule `ratio`: a distribution without its own token", "does not hold the token drawn",
           sourced([2], [1.0])),
    Row("rule `ratio`: a tree", "unsupported", "parents", "takes no draft trees", ENDS,
        after_open(drafting(1, parents=[-1], draft_probs=[pb.SparseDistribution(ids=[1], probs=[1.0])]), rule="ratio"),
        trusting=True),
)  # fmt: skip

STREAM = (
    Row("bytes that are no message, before `Open`", "invalid_request", "kind", "are not a message", NEVER,
        each(b"\xff\xff", CUT_OFF, opening()[:-1])),
    Row("bytes that are no message, later", "invalid_request", "kind", "are not a message", ENDS,
        after_open(b"\xff\xff", CUT_OFF)),
    Row("text that is not UTF-8", "invalid_request", "kind", "bad UTF-8", NEVER,
        each(NOT_UTF8, opening(rule="match").replace(b"match", b"mat\xedh"))),
    Row("an empty message, or one of a kind this version does not know, before `Open`", "invalid_request", "kind",
        "of a kind", NEVER, each(b"", UNKNOWN_KIND)),
    Row("an empty message, or one of an unknown kind, later", "invalid_request", "kind", "of a kind", ENDS,
        after_open(b"", UNKNOWN_KIND)),
    Row("a message above the limit of bytes, such as 10 MB of text", "RESOURCE_EXHAUSTED", "", "", NEVER,
        each(BIG, chat(*[pb.ChatMessage()] * 1_000_000), opening([1] * LIMIT), text("a" * LIMIT))),
    Row("a message above the limit of bytes, later", "RESOURCE_EXHAUSTED", "", "", LINGERS,
        after_open(drafting(*[1] * 5_000_000))),
    Row("`Draft` or `Cancel` before `Open`", "protocol", "", "must be Open", NEVER, each(drafting(1), CANCEL)),
    Row("another `Open` on the same stream", "invalid_request", "open", "already open", ENDS,
        after_open(opening((7,)), opening(PROMPT, top_k=1))),
    Row("the same `Open` again: a repeated frame", "", "", "", GOES_ON, after_open(opening())),
    Row("a sequence for which the target gives NaN or infinity", "non_finite_logits", "", "non-finite", ENDS,
        each(opening((1, POISON)), opening(committed=[POISON]))),
)  # fmt: skip


SILENT = (
    Row("10 seconds of silence before `Open`", "unreachable", "", "no message for", NEVER, ()),
    Row("a half-close before `Open`", "OK", "", "", NEVER, ()),
    Row("a half-close after `Open`: the client reads on, without drafts", "", "", "", GOES_ON, ()),
)


def _gone(state: str, session: str) -> Row:
    return Row(f"a client gone {state}", "", "", "", session, ())


# How these happen is code: tests/test_bad_input.py.
VANISHING = (
    _gone("before `Open`", NEVER),
    _gone("while its prompt is tokenized", NEVER),
    _gone("after `Opened`", LINGERS),
    _gone("with a draft waiting", LINGERS),
    _gone("during a step", LINGERS),
    _gone("after the last verdict", LINGERS),
    _gone("in the middle of its first message", NEVER),
    _gone("in the middle of a later message", LINGERS),
)


@dataclass(frozen=True)
class Unsendable(Row):
    """A row that a device of ours refuses by itself: `messages` have no form on the wire."""

    messages: tuple[ClientMessage, ...] = ()


DEVICE = (
    Unsendable("an id below 0 or above 4294967295, in a device's own process", "invalid_request", "",
        "the message cannot be sent", NEVER, (), messages=(
            Open((1, -1)), Open((2**32,)), Open((1,), committed=(-1,)), Open((1,), SamplingParams(stop_ids=(-1,))),
            Open((1,), SamplingParams(logit_bias=((-1, 1.0),))), Draft(1, DraftBlock(-1)),
            Draft(1, DraftBlock(3, (DraftToken(-1),))), Draft(1, DraftBlock(3, (DraftToken(2**32),))))),
    Unsendable("text with a lone surrogate, in a device's own process", "invalid_request", "",
        "the message cannot be sent", NEVER, (), messages=(
            Open("\ud800"), Open((ChatMessage("user", "\udfff"),)), Open((1,), guide=Guide(json_schema="\ud800")))),
)  # fmt: skip

SENT = OPENING + GUIDES + DRAFTING + RATIO + STREAM
ROWS = SENT + SILENT + VANISHING + DEVICE
