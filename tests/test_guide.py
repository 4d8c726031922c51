"""Grammars as masks: every walk ends in a valid answer, masks are exact, drafts leave no trace."""

import itertools
import json
import random
import subprocess
import sys

import jsonschema
import pytest
import regex
from tokenizers import Tokenizer, decoders, models, normalizers

from opensled.core.errors import EngineError, InvalidRequest, TruthConflict, Unsupported
from opensled.core.messages import Guide
from tests.guiding import (
    EOS,
    IM_END,
    PADDED,
    decode,
    follows,
    ids,
    may_follow,
    schema_guide,
    tagged,
    tiny,
    unpack,
    walk,
)
from verify_server.text import tool_grammar
from verify_server.text.guide import Constraint, GuideCompiler
from verify_server.text.tool_grammar import BESIDE_SIGNS, EVERYWHERE, WHITESPACE, blanks

SCHEMAS = {
    "any object": {},
    "enum": {"enum": ["red", "green", 7, None, True, "ü"]},
    "const": {"const": {"a": [1, {"b": "c"}]}},
    "flat": {
        "type": "object",
        "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}, "level": {"type": "integer"}},
        "required": ["room", "on"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 5},
    "tuple": {"type": "array", "prefixItems": [{"const": "x"}, {"type": "number"}], "items": False, "minItems": 2},
    "$ref": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"v": {"type": "integer"}, "sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
    },
    "pattern": {"type": "string", "pattern": "^[a-f]{2,4}(-[0-9]+)?$"},
    "pattern inside": {"type": "string", "pattern": "[0-9]x", "maxLength": 40},
    "length": {"type": "string", "minLength": 3, "maxLength": 6},
    "integer range": {"type": "integer", "minimum": -17, "maximum": 233},
    "number range": {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}, {"const": "none"}]},
    "types": {"type": ["string", "null", "boolean"]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
    "date": {"type": "string", "format": "date"},
}  # fmt: skip
BOOL = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_every_walk_over_the_masks_ends_in_json_of_the_schema(schema):
    rng = random.Random(json.dumps(schema))
    for _ in range(20):
        text = decode(walk(tiny(), schema_guide(schema), rng))
        jsonschema.Draft202012Validator(schema or {"type": "object"}).validate(json.loads(text))


def test_masks_are_those_of_a_brute_force_over_a_finite_language():
    values = ["a", "ab", "bé", 12, 123, False]
    language = [json.dumps(value, ensure_ascii=False).encode() for value in values]
    prefixes = {text[:end] for text in language for end in range(len(text) + 1)}
    for prefix in prefixes:
        constraint = tiny().start(schema_guide({"enum": values}), _byte_ids(prefix))
        expected = {id for id, piece in _pieces().items() if prefix + piece in prefixes}
        ended = {EOS} if prefix in language else set()
        assert may_follow(constraint) == expected | ended, prefix


# Those that the llguidance at hand can hold an answer to.
SPACINGS = [BESIDE_SIGNS] if blanks() is BESIDE_SIGNS else [EVERYWHERE, BESIDE_SIGNS]


@pytest.fixture(params=SPACINGS, ids=lambda it: "everywhere" if it is EVERYWHERE else "beside signs")
def spacing(request, monkeypatch):
    monkeypatch.setattr(tool_grammar, "blanks", lambda: request.param)
    return request.param


def test_masks_are_those_of_a_regular_expression_for_an_object(spacing):
    space = f"(?:{WHITESPACE})?"
    inside = space if spacing is EVERYWHERE else ""
    pattern = regex.compile(
        rf'\{{{inside}"a"{space}:{space}(?:true|false){inside}\}}'.replace(r"\n", "\n").encode()
    )
    rng = random.Random(1)
    for _ in range(6):
        answer = walk(tiny(), schema_guide(BOOL), rng)
        for length in range(len(answer) + 1):
            begun = decode(answer[:length]).encode()
            matches = {
                id for id, piece in _pieces().items() if pattern.fullmatch(begun + piece, partial=True)
            }
            ended = {EOS} if length == len(answer) else set()
            assert may_follow(tiny().start(schema_guide(BOOL), answer[:length])) == matches | ended, begun


def test_the_masks_of_a_draft_are_those_of_its_prefixes():
    answer = ids('{"a": true}')
    constraint = tiny().start(schema_guide(BOOL), ())
    masks = constraint.next_masks(answer)
    assert len(masks) == len(answer) + 1 and {len(mask) for mask in masks} == {(PADDED + 7) // 8}
    for length, mask in enumerate(masks):
        assert tiny().start(schema_guide(BOOL), answer[:length]).next_masks(()) == [mask]
    assert unpack(masks[-1]) == {EOS}


@pytest.mark.parametrize("wrong", [*ids("x"), 1, 2090, PADDED - 1, PADDED, 10**9, -1, EOS])
def test_after_an_illegal_draft_id_the_last_mask_is_repeated(wrong):
    good = ids('{"a"')
    constraint = tiny().start(schema_guide(BOOL), ())
    masks = constraint.next_masks([*good, wrong, *ids(": true}")])
    legal = constraint.next_masks(good)
    assert masks == legal + legal[-1:] * (len(masks) - len(legal))
    assert len(masks) == len(good) + 1 + len(ids(": true}")) + 1


def test_a_draft_leaves_no_trace():
    rng = random.Random(3)
    guide = schema_guide(SCHEMAS["$ref"])
    for _ in range(5):
        answer, other = walk(tiny(), guide, rng), walk(tiny(), guide, rng)
        touched, clean = tiny().start(guide, ()), tiny().start(guide, ())
        for token in answer:
            before = touched.next_masks(())
            touched.next_masks(other)
            touched.next_masks(answer)
            assert touched.next_masks(()) == before == clean.next_masks(())
            touched.commit([token])
            clean.commit([token])


def test_a_replayed_answer_goes_on_like_the_first():
    rng = random.Random(4)
    for schema in SCHEMAS.values():
        answer = walk(tiny(), schema_guide(schema), rng)
        constraint = tiny().start(schema_guide(schema), ())
        cuts = sorted({0, len(answer), *(rng.randrange(len(answer) + 1) for _ in range(4))})
        for start, stop in itertools.pairwise(cuts):
            constraint.commit(answer[start:stop])
            again = tiny().start(schema_guide(schema), answer[:stop])
            assert again.next_masks(answer[stop:]) == constraint.next_masks(answer[stop:])


def test_nothing_but_an_end_follows_a_complete_answer():
    constraint = tagged().start(schema_guide(BOOL), ids('{"a": true'))
    assert not may_follow(constraint) & {EOS, IM_END}
    constraint.commit(ids("}"))
    assert may_follow(constraint) == {EOS, IM_END}
    assert [unpack(mask) for mask in constraint.next_masks([IM_END, EOS])] == [{EOS, IM_END}] * 3
    constraint.commit([IM_END])
    assert may_follow(constraint) == {EOS, IM_END}
    constraint.commit([EOS])  # a session that ignores ends
    with pytest.raises(EngineError):
        constraint.commit(ids("x"))


def test_a_number_may_end_or_go_on():
    constraint = tiny().start(schema_guide({"type": "integer"}), ids("12"))
    choices = may_follow(constraint)
    assert EOS in choices and set(ids("7")) <= choices and not set(ids("x")) & choices
    constraint.commit([EOS])
    assert may_follow(constraint) == {EOS}


@pytest.mark.parametrize("committed", [ids("x"), [*ids('{"a"'), EOS], [EOS], [2090], [PADDED], [1]])
def test_committed_ids_that_break_the_grammar_are_a_conflict(committed):
    with pytest.raises(TruthConflict):
        tiny().start(schema_guide(BOOL), committed)


def test_a_commit_that_breaks_the_grammar_is_an_error_of_the_engine():
    constraint = tiny().start(schema_guide(BOOL), ())
    with pytest.raises(EngineError, match="stuck"):
        constraint.commit(ids("x"))


def _many_key_patterns(count: int) -> str:
    """Disjoint patterns: the compiler tries each against each other, 320 of them take it seconds."""
    return json.dumps({"patternProperties": {f"^x{i}-[a-z]{{1,50}}$": {} for i in range(count)}})


def _joined_patterns(count: int) -> str:
    """Twenty of these keep the compiler busy for more than a minute."""
    return json.dumps(
        {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(count)]}
    )


REFUSALS = [
    ("nonsense", InvalidRequest, "JSON"),
    ("[]", InvalidRequest, "object"),
    ('{"type": "foo"}', Unsupported, "foo"),
    ('{"type": "string", "pattern": "(?=a)b"}', Unsupported, "pattern"),
    ('{"$ref": "https://example.org/x.json"}', Unsupported, "example.org"),
    ('{"$ref": "#/$defs/missing"}', Unsupported, "missing"),
    ('{"not": {}}', Unsupported, "not"),
    ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', Unsupported, "oneOf"),
    ('{"type": "string", "format": "klingon"}', Unsupported, "klingon"),
    ('{"type": "array", "uniqueItems": true}', Unsupported, "uniqueItems"),
    ('{"enum": []}', InvalidRequest, "nsatisfiable"),
    ('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', InvalidRequest, "no answer"),
    ('{"type": "object", "minProperties": 2, "additionalProperties": {}}', Unsupported, "minProperties"),
    (_many_key_patterns(101), Unsupported, "patterns"),
    (_joined_patterns(9), Unsupported, "patterns"),
    ('{"not": {}, "x-guidance": {"lenient": true}}', Unsupported, "not"),
    ('{"const": "\\ud800"}', InvalidRequest, None),
    (json.dumps({"anyOf": [{}] * 20_001}), InvalidRequest, "20000"),
    ('{"items":' * 100_000 + "{}" + "}" * 100_000, InvalidRequest, None),
]


@pytest.mark.parametrize(("schema", "error", "cause"), REFUSALS, ids=[text[:40] for text, *_ in REFUSALS])
def test_a_schema_that_cannot_be_kept_to_is_refused_by_field(schema, error, cause):
    with pytest.raises(error, match=cause) as refusal:
        tiny().start(Guide(json_schema=schema, strict=True), ())
    assert refusal.value.field == "response_format"
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("depth", [*range(80, 1100, 60)])
def test_a_deep_schema_is_served_or_refused(depth):
    try:
        tiny().start(Guide(json_schema='{"items":' * depth + "{}" + "}" * depth), ())
    except InvalidRequest as refusal:
        assert refusal.field == "response_format"


def test_many_patterns_are_served_where_they_do_not_meet():
    text = json.dumps({"properties": {f"p{i}": {"type": "string", "format": "date"} for i in range(40)}})
    tiny().start(Guide(json_schema=text), ())
    tiny().start(Guide(json_schema=_many_key_patterns(100)), ())


def test_a_long_chain_of_references_does_not_end_the_server():
    """The compiler recurses; on a usual stack this is a segmentation fault."""
    code = """
import json
from opensled.core.messages import Guide
from tests.guiding import tiny
links = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1200)}
schema = json.dumps({"$ref": "#/$defs/d0", "$defs": {**links, "d1200": {"type": "integer"}}}, separators=(",", ":"))
print(len(tiny().start(Guide(json_schema=schema), ()).next_masks(())))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "1"), run.stderr


def test_a_target_without_end_or_with_a_foreign_tokenizer_is_refused():
    unending = GuideCompiler(b"{}", 10, (), "")
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str().encode()
    for guides in (unending, GuideCompiler(words, 10, (0,), ""), GuideCompiler(b"not JSON", 10, (0,), "")):
        with pytest.raises(Unsupported) as refusal:
            guides.start(schema_guide(BOOL), ())
        assert refusal.value.field == "response_format"


def test_added_tokens_of_a_byte_fallback_vocabulary_are_text():
    """As Gemma has them: a run of spaces is an added token, spelled with a lower block."""
    pieces = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc{}:,[]1", '"']
    tokenizer = Tokenizer(models.BPE({piece: id for id, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.add_tokens(["▁▁", "\n\n"])
    spaces, breaks = len(pieces), len(pieces) + 1
    guides = GuideCompiler(tokenizer.to_str().encode(), 300, (0,), "")
    choices = may_follow(guides.start(schema_guide({"type": "string"}), tokenizer.encode('"').ids))
    assert {spaces, pieces.index("▁"), pieces.index('"'), 1 + ord("z")} <= choices
    assert not choices & {0, breaks, 1 + ord("\n"), *range(len(pieces) + 2, 300)}


class _GivenUp:
    """A matcher that ran out of its limits: stopped, with only the end allowed, but not at an end."""

    def compute_bitmask(self) -> bytes:
        return b"\x01\x00\x00\x00"

    def is_accepting(self) -> bool:
        return False

    def is_stopped(self) -> bool:
        return True

    def is_error(self) -> bool:
        return False

    def get_error(self) -> str:
        return ""

    def stop_reason(self) -> str:
        return "ParserTooComplex"


def test_a_matcher_that_gives_up_is_an_error_and_not_an_end():
    with pytest.raises(EngineError, match="ParserTooComplex"):
        Constraint(_GivenUp(), 10, frozenset([0])).next_masks(())


def test_whitespace_is_bounded(spacing):
    assert follows(tiny(), schema_guide(BOOL), '{\n        "a": true\n}') is (spacing is EVERYWHERE)
    assert follows(tiny(), schema_guide(BOOL), '{"a" :\n        true}')
    assert not follows(tiny(), schema_guide(BOOL), '{\n\n"a"')
    assert not follows(tiny(), schema_guide(BOOL), '{"a":' + " " * 60 + "true")


def _pieces() -> dict[int, bytes]:
    """Bytes of tiny's ordinary tokens, read from its byte-level alphabet and not by way of llguidance."""
    tokenizer = Tokenizer.from_file("models/tiny/tokenizer.json")
    letters = {letter: byte for byte, letter in _byte_letters().items()}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return {id: bytes(letters[letter] for letter in piece) for piece, id in vocabulary.items() if id > 3}


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


def _byte_ids(text: bytes) -> list[int]:
    single = {piece: id for id, piece in _pieces().items() if len(piece) == 1}
    return [single[text[i : i + 1]] for i in range(len(text))]
