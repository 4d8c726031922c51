"""Drafts by text: aligned with the target's own tokens, whatever the vocabularies are."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.drafters.by_text import ByTextDrafter, Piece, TextSource
from edge_client.drafters.model_text import ModelText
from edge_client.drafters.retokenize import Seam, Spelled, settled
from opensled.core.messages import SamplingParams
from tests.drafter_contract import DrafterContract, ids, pull
from tests.fakes import IMPATIENT, Made, Weather
from tests.five_tokenizers import MADE, TEXTS, FamilyTokenizer, family, tokenizer_json
from tests.system import CALM, FOREVER, Answer, ask, running
from tests.text_pairs import (
    GREEDY,
    PAIRS,
    KnowingModel,
    Rounds,
    TextEngine,
    answer_ids,
    by_text,
    draft_through,
    spelled,
    stubborn_answer,
)
from tests.tiny_drafts import tiny_tokenizer
from verify_server.admission.session_manager import SessionLimits

FAMILIES = (*MADE, "tiny")
# The draft's own tokenizer writes another text than it is given: composed letters, other forms
REWRITTEN = {("qwen", "composed"), ("unigram", "composed"), ("unigram", "scripts")}
pair = pytest.mark.parametrize(("target", "draft"), PAIRS, ids=lambda name: name)


class Echo(TextSource):
    """Writes the text again from its beginning, in pieces of three bytes; a function of the text alone."""

    def follow(self, text: bytes) -> None:
        self._text = text

    def pieces(self) -> Iterator[Piece]:
        book = self._text[:60] * 40 if self._text else b""
        for start in range(len(self._text) % 60, len(book), 3):
            yield Piece(book[start : start + 3], 0.9)


class TestByText(DrafterContract):
    make = staticmethod(lambda: Made(lambda: ByTextDrafter(Echo(), tiny_tokenizer(), (0,))))


class Told(TextSource):
    """Says these pieces after the first text, and remembers every text."""

    def __init__(self, *pieces: Piece) -> None:
        self.said, self.texts = pieces, list[bytes]()

    def follow(self, text: bytes) -> None:
        self.texts.append(text)

    def pieces(self) -> Iterator[Piece]:
        return iter(self.said if len(self.texts) == 1 else ())


def told(target: str, prompt: Sequence[int], *pieces: Piece) -> tuple[ByTextDrafter, Told]:
    source = Told(*pieces)
    drafter = ByTextDrafter(source, family(target), (family(target).end,))
    drafter.begin(prompt, GREEDY)
    return drafter, source


@pair
@pytest.mark.parametrize("kind", TEXTS)
def test_a_draft_model_that_knows_the_text_is_right_nearly_always(target, draft, kind):
    text = TEXTS[kind] * 3
    prompt, answer = answer_ids(target, text)
    rounds = draft_through(by_text(target, draft, spelled(target, [*prompt, *answer[:-1]])), prompt, answer)
    if (draft, kind) in REWRITTEN:
        assert rounds.share > 0.2
        return
    assert rounds.share > 0.94, rounds
    assert len(rounds.accepted) < len(answer) / 5, rounds


@pair
def test_looking_ahead_changes_no_draft(target, draft):
    prompt, answer = answer_ids(target, TEXTS["scripts"] * 2)
    text = spelled(target, [*prompt, *answer[:-1]])
    alone = draft_through(by_text(target, draft, text), prompt, answer)
    assert draft_through(by_text(target, draft, text), prompt, answer, ahead=True) == alone


@pair
def test_the_end_of_the_draft_is_the_end_of_the_target(target, draft):
    prompt, answer = answer_ids(target, "It is over now.")
    drafter = by_text(target, draft, spelled(target, [*prompt, *answer[:-1]]))
    drafter.begin(prompt, GREEDY)
    assert ids(pull(drafter, 40)) == list(answer)
    drafter.commit([*answer[:-1], family(target).encode_rendered(" and")[-1]])  # the target goes on
    assert len(pull(drafter, 3)) == 3


@pair
def test_what_agrees_is_computed_once(target, draft):
    prompt, answer = answer_ids(target, TEXTS["plain"] * 4)
    text = spelled(target, [*prompt, *answer[:-1]])
    model = KnowingModel(family(draft), text)
    source = ModelText(model, family(draft))
    draft_through(ByTextDrafter(source, family(target), (family(target).end,)), prompt, answer)
    assert model.forwarded < 1.5 * len(family(draft).encode(text.decode())) + 8


@pair
def test_a_long_prompt_is_read_piece_by_piece(target, draft):
    prompt, answer = answer_ids(target, TEXTS["plain"] * 9)
    drafter = by_text(target, draft, spelled(target, [*prompt, *answer[:-1]]))
    drafter.begin(prompt, GREEDY)
    assert drafter.behind and drafter.lags
    drafter.read(20)
    drafter.commit(answer[:30])  # the server wrote meanwhile
    while drafter.read(20):
        pass
    assert not drafter.behind and ids(pull(drafter, 9)) == list(answer[30:39])


def test_a_word_waits_until_it_is_whole():
    prompt = family("gpt2").encode("It is")
    pieces = (Piece(b" un"), Piece(b"avail"), Piece(b"able"), Piece(b" here"), Piece(b"."))
    drafter, _ = told("gpt2", prompt, *pieces)
    assert ids(pull(drafter, 40)) == list(family("gpt2").encode(" unavailable here."))


def test_a_target_that_ends_its_turns_otherwise_gets_the_end_of_its_prompt():
    tokenizer = family("qwen")
    turn, text_end = tokenizer.end, tokenizer.pieces.index("<|endoftext|>")
    drafter = ByTextDrafter(Told(Piece(b" so"), Piece(b"", 0.7, is_end=True)), tokenizer, (text_end, turn))
    drafter.begin([*tokenizer.encode("Hi"), turn, *tokenizer.encode("\nHello")], GREEDY)
    end = pull(drafter, 9)[-1]
    assert (end.id, end.confidence) == (turn, 0.7)


def test_confidence_is_that_of_all_pieces_of_a_token():
    prompt = family("gpt2").encode("the")
    drafter, _ = told(
        "gpt2", prompt, Piece(b" o", 0.5), Piece(b"f", 0.5), Piece(b" the", 0.8), Piece(b" end")
    )
    assert [token.confidence for token in pull(drafter, 2)] == [0.25, 0.8]


def test_the_source_hears_the_truth_as_text():
    tokenizer = family("llama2")
    drafter, source = told("llama2", tokenizer.encode("Hello there"), Piece(b" my friend"))
    assert source.texts == [b"Hello there"]  # without the space that the tokenizer puts in front, and its <s>
    drafter.commit(
        tokenizer.encode_rendered("Hello there you")[len(tokenizer.encode_rendered("Hello there")) :]
    )
    assert source.texts[-1] == b"Hello there you"


def test_specials_of_the_truth_are_spelled():
    tokenizer = family("qwen")
    _, source = told("qwen", tokenizer.encode_rendered("<|im_start|>user\nHi<|im_end|>\n"))
    assert source.texts == [b"<|im_start|>user\nHi<|im_end|>\n"]


@pytest.mark.parametrize("junk", [b"\xff\xfe", b"\x80", "😀".encode()[:2], b""])
def test_bytes_that_are_no_text_end_the_drafts_and_nothing_else(junk):
    prompt = family("gpt2").encode("a b c")
    drafter, _ = told("gpt2", prompt, Piece(b" d e "), *[Piece(junk)] * 50, Piece(b"more and more"))
    assert ids(pull(drafter, 9))[:2] == list(family("gpt2").encode(" d e"))
    drafter.commit(family("gpt2").encode(" d"))
    pull(drafter, 9)


def test_a_source_that_never_ends_and_says_nothing_is_left():
    class Endless(Told):
        def pieces(self):
            while True:
                yield Piece(b"\xff")

    drafter = ByTextDrafter(Endless(), family("gpt2"))
    drafter.begin(family("gpt2").encode("a b"), GREEDY)
    assert pull(drafter) == []


# Seams


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", TEXTS)
def test_the_tokens_behind_any_token_are_those_of_the_whole_text(name, kind):
    tokenizer, seam = family(name), Seam(family(name))
    text = seam.begin(
        tokenizer_text := b"".join(map(tokenizer.token_bytes, tokenizer.encode_rendered(TEXTS[kind])))
    )
    tokens, place = tokenizer.encode_rendered(TEXTS[kind]), len(text) - len(tokenizer_text)
    wrong = 0
    for index, token in enumerate(tokens):
        found = seam.encode(text[: max(0, place)], text[max(0, place) :])
        wrong += [each.id for each in found][1:4] != list(tokens[index + 1 : index + 4])
        place += len(tokenizer.token_bytes(token))
    assert wrong <= len(tokens) / 20


@pytest.mark.parametrize("name", FAMILIES)
@given(text=st.text(max_size=40), cut=st.integers(0, 160), end=st.integers(0, 160))
def test_tokens_spell_what_follows_the_seam(name, text, cut, end):
    data, tokenizer = text.encode(), family(name)
    before, after = data[:cut], data[cut:end]
    found = Seam(tokenizer).encode(before, after)
    spelled = b"".join([tokenizer.token_bytes(token.id) for token in found])
    is_added = sum(token.size for token in found) < len(spelled)  # a space in front of a whole text
    assert not (is_added and before)
    assert (
        after.startswith(spelled[is_added:]) and sum(token.size for token in found) == len(spelled) - is_added
    )


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.binary(max_size=12))
def test_a_token_of_bytes_spells_them(name, data):
    token = family(name).token_of(data)
    assert token is None or family(name).token_bytes(token) == data


@pytest.mark.parametrize("name", FAMILIES)
def test_byte_tokens_are_found(name):
    tokenizer = family(name)
    found = [tokenizer.token_of(bytes([byte])) for byte in range(256)]
    assert None not in found if name != "tiny" else found.count(None) < 256


@pytest.mark.parametrize(
    ("text", "sizes", "count"),
    [
        ("the oaks", (3, 3, 2), 1),  # " oaks" may become " oakstead", and be cut otherwise
        ("the oaks ", (3, 3, 2, 1), 3),
        ("if x:\n   ", (2, 2, 1, 1, 3), 3),  # more spaces may follow
        ("a = b->", (1, 2, 2, 1, 1), 3),  # more signs
        ("你好世界", (3, 3, 3, 3), 3),  # no word ends there
        ("Donaudampfschifffahrt", (5, 5, 5, 6), 3),  # long enough
        ("", (), 0),
    ],
)
def test_settled_tokens_stay_whatever_follows(text, sizes, count):
    tokens = [Spelled(id, size) for id, size in enumerate(sizes)]
    assert settled(tokens, text.encode()) == tokens[:count]


# The draft model's own context


def test_letters_that_a_draft_models_tokenizer_drops_are_passed():
    document = json.loads(tokenizer_json("gpt2"))
    document["normalizer"] = {"type": "Replace", "pattern": {"String": "\u200b"}, "content": ""}
    tokenizer = FamilyTokenizer(json.dumps(document).encode(), "gpt2")
    prompt, answer = answer_ids("llama2", "one\u200btwo three " * 9)
    source = ModelText(KnowingModel(tokenizer, b"one two three " * 9), tokenizer)
    drafter = ByTextDrafter(source, family("llama2"), (family("llama2").end,))
    assert draft_through(drafter, prompt, answer).share > 0.3


@given(
    name=st.sampled_from(FAMILIES),
    texts=st.lists(st.text(alphabet="ab é😀世\n <0x>", max_size=30), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 30), min_size=6, max_size=6),
)
def test_the_draft_model_reads_the_text_and_nothing_else(name, texts, cuts):
    """Whatever the text was before: longer, shorter, another one, cut within a character."""
    tokenizer = family(name)
    model = KnowingModel(tokenizer, "ab é😀世 and so on".encode())
    source, seam = ModelText(model, tokenizer), Seam(tokenizer)
    for text, cut in zip(texts, cuts):
        data = text.encode()[:cut]
        source.follow(data)
        list(islice(source.pieces(), 3))
        told = model.sequence[: len(model.sequence) - len(model.drafted)][len(tokenizer.frame) :]
        heard = seam.begin(b"".join(map(tokenizer.token_bytes, told)))
        if (
            data == data.decode("utf-8", "ignore").encode()
            and tokenizer.decode(tokenizer.encode_rendered(text)) == text
        ):
            assert heard == data


# -- the text stays the target's own ------------------------------------------------------------------------------


STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)
PARAMS = SamplingParams(temperature=0.0, max_tokens=400)


def writer(prompt: Sequence[int], answer: Sequence[int]) -> Callable[[Sequence[int]], int]:
    """A target that writes `answer`."""
    return lambda context: answer[min(len(context) - len(prompt), len(answer) - 1)]


@pytest.mark.parametrize(("target", "draft"), PAIRS, ids=lambda name: name)
@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
async def test_the_answer_is_the_targets_own(target, draft, weather):
    alone, linked = Rounds(), Rounds()
    answers: list[Answer] = []
    for kind, text in TEXTS.items():
        prompt, expected = stubborn_answer(target, text, breaks=kind == "emoji")
        known = spelled(target, [*prompt, *expected[:-1]])
        engine = TextEngine(target=writer(prompt, expected), family=target)
        waits, patience = (0.5, IMPATIENT) if weather.loss else (FOREVER, CALM)
        async with running(
            engine, draft_wait=waits, weather=weather, limits=SessionLimits(linger=2.0)
        ) as network:
            drafter = by_text(target, draft, known)
            answers.append(await ask(network, prompt, drafter, PARAMS, patience=patience))
        assert (answers[-1].tokens, answers[-1].finish_reason) == (expected, "eos"), kind
        rounds = answers[-1].rounds
        linked.add(Rounds([each.accepted for each in rounds], [each.drafted for each in rounds]))
        if not weather.loss:
            alone.add(draft_through(by_text(target, draft, known), prompt, expected, block=4, ahead=True))
    if weather.loss:
        assert any(answer.reopened for answer in answers)
    else:
        # After an empty draft the server writes on until the next comes, so the machine's pace decides where drafts
        # begin. It does not decide how many of their tokens are right.
        assert linked.share > alone.share / 2 > 0.08, (linked, alone)
