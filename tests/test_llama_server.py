"""A real llama-server process drafts: llama.cpp's whole server, from the wheel xllamacpp, on the tiny draft's file."""

from contextlib import closing
from importlib.util import find_spec
from itertools import islice

import pytest

from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.detection import LLAMA, find_server
from edge_client.draft_servers.http_stream import STREAM_TOKENS
from edge_client.draft_servers.llama_server import LlamaServerTokens, has_vocabulary, read_facts
from edge_client.draft_servers.server import ServerFactory
from edge_client.drafters.base import DrafterOptions
from edge_client.drafters.outage import Outage
from edge_client.drafters.streamed import StreamedDrafter
from lab.benchmarks import peer_server
from lab.testbed.processes import free_port
from opensled.core.errors import NotFound
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.protocol import common_prefix
from opensled.core.sampling import DRAFT_CANDIDATES, Sampler
from opensled.text.tokenizer import TargetTokenizer
from tests import lossless
from tests.drafter_contract import BLOCK, ids, pull
from tests.small_tokenizer import small_tokenizer
from tests.tiny_drafts import TEXT, TINY_DRAFT, tiny_info, tiny_tokenizer

GGUF = TINY_DRAFT / "tiny-draft-q8_0.gguf"
SLOTS, CONTEXT = 2, 512
PROMPT = tiny_tokenizer().encode(TEXT)

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None, reason="needs llama.cpp's server: extra bench (xllamacpp)"
)


@pytest.fixture(scope="module")
def url():
    port = free_port()
    with peer_server.running(peer_server.command(GGUF, port, SLOTS, CONTEXT), port) as found:
        yield found.url


@pytest.fixture(scope="module")
def made(url):
    factory = ServerFactory("", 0, DrafterOptions(draft_url=url))
    factory.fit(tiny_info(), tiny_tokenizer())
    return factory


@pytest.fixture(scope="module")
def built_in():
    pytest.importorskip("llama_cpp")
    return lossless.factory("llamacpp")


def sampler(**params: object) -> Sampler:
    return Sampler(SamplingParams(**{"temperature": 0.0, **params}), noise_key(3), vocab_size=2048)


def test_what_it_tells_of_itself(url, made):
    facts = read_facts(draft_address(url))
    assert (facts.context, facts.slots) == (CONTEXT, SLOTS) and facts.vocab_size >= tiny_info().vocab_size
    assert find_server(draft_address(url), GGUF.name).kind == LLAMA
    assert made.mode == "token ids" and "by token ids at 127.0.0.1:" in made.name
    with pytest.raises(NotFound, match="has no model 'other'"):
        find_server(draft_address(url), "other")


def test_another_vocabulary_is_known_as_such(url):
    address = draft_address(url)
    facts = read_facts(address)
    assert has_vocabulary(address, facts, tiny_tokenizer(), tiny_info().vocab_size)
    other = TargetTokenizer(small_tokenizer())
    assert not has_vocabulary(address, facts, other, len(other.pieces))
    assert not has_vocabulary(address, facts, tiny_tokenizer(), facts.vocab_size + 1)


def stream(url: str, prompt, candidates: int, most: int = STREAM_TOKENS):
    source = LlamaServerTokens(draft_address(url), tiny_tokenizer(), 0, Outage("llama-server"))
    with closing(source.stream(prompt, candidates)) as found:
        return list(islice((token for token in found if token is not None), most))


def test_a_stream_has_the_tokens_and_their_candidates(url):
    tokens = stream(url, PROMPT, DRAFT_CANDIDATES, 8)
    assert [token.id for token in stream(url, PROMPT, 0, 8)] == [token.id for token in tokens]
    for token in tokens:
        assert token.ids[0] == token.id and len(token.ids) == DRAFT_CANDIDATES == len(set(token.ids))
        assert list(token.logprobs) == sorted(token.logprobs, reverse=True)
        assert 0 < sum(2.718281828**logprob for logprob in token.logprobs) <= 1.001
    assert stream(url, PROMPT, 0, 1)[0].ids == ()


def test_tokens_within_a_character_are_not_lost(url):
    """The server gives no chunk for a token that ends within a character."""
    emoji = tiny_tokenizer().encode_rendered("🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃🙂🙃")
    tokens = [token.id for token in stream(url, emoji, 0)]
    source = StreamedDrafter(LlamaServerTokens(draft_address(url), tiny_tokenizer(), 0, Outage("x")), CONTEXT)
    source.begin(emoji, sampler())
    assert ids(pull(source, len(tokens))) == tokens
    spelled = b"".join(map(tiny_tokenizer().token_bytes, tokens))
    assert spelled.decode("utf-8", "ignore")  # whole characters, but for a cut at the end


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9}])
def test_its_drafts_are_those_of_the_built_in_drafter(made, built_in, sampling):
    """Up to a near tie: two builds of llama.cpp round otherwise."""
    same = total = 0
    for number in range(12):
        prompt = (*PROMPT[: 20 + number * 3],)
        blocks = []
        for factory in (made, built_in):
            drafter = factory.create()
            drafter.begin(prompt, sampler(**sampling))
            blocks.append(pull(drafter, 8))
            drafter.close()
        agreed = 0
        for mine, theirs in zip(*blocks, strict=True):
            if mine.id != theirs.id:
                break
            assert mine.confidence == pytest.approx(theirs.confidence, abs=0.03)
            agreed += 1
        same, total = same + agreed, total + 8
    assert same > 0.9 * total


def test_verdicts_cut_streams_and_the_next_ones_go_on_behind_the_truth(made):
    drafter = made.create()
    drafter.begin(PROMPT, sampler())
    block = ids(pull(drafter, BLOCK))
    drafter.commit([*block[:2], 7])
    after = ids(pull(drafter, BLOCK))
    fresh = made.create()
    fresh.begin([*PROMPT, *block[:2], 7], sampler())
    assert ids(pull(fresh, BLOCK)) == after
    for each in (drafter, fresh):
        each.close()


def test_a_text_that_fills_its_context_is_drafted_for(made):
    drafter = made.create()
    drafter.begin(PROMPT * (1 + 2 * CONTEXT // len(PROMPT)), sampler())
    assert len(pull(drafter, BLOCK)) == BLOCK and not made.outage.reason
    drafter.close()


def test_text_where_the_vocabularies_differ(url, monkeypatch):
    monkeypatch.setattr("edge_client.draft_servers.server.has_vocabulary", lambda *facts: False)
    factory = ServerFactory("", 0, DrafterOptions(draft_url=url))
    factory.fit(tiny_info(), tiny_tokenizer())
    assert factory.mode == "text"
    drafter = factory.create()
    drafter.begin(PROMPT, sampler())
    block = pull(drafter, BLOCK)
    assert len(block) == BLOCK and all(0 < token.confidence <= 1 for token in block)
    drafter.close()


# -- answers ----------------------------------------------------------------------------------------------------------


def standing(factory, length: int = 4) -> tuple[int, int]:
    """Of blocks along the target's own answers: draft tokens that stand, and those that were drafted."""
    right = drafted = 0
    drafter = factory.create()
    for case in lossless.cases():
        draw = Sampler(case.params, noise_key(case.params.seed or 0), prompt_length=len(case.prompt))
        drafter.begin(case.prompt, draw)
        rest = list(case.expected)
        while rest:
            block = ids(pull(drafter, min(length, len(rest))))
            accepted = common_prefix(block, rest)
            right, drafted = right + accepted, drafted + len(block)
            drafter.commit(rest[: accepted + 1])
            del rest[: accepted + 1]
    drafter.close()
    return right, drafted


def test_as_many_drafts_stand_as_of_the_built_in_drafter(made, built_in):
    (served, tried), (own, of) = standing(made), standing(built_in)
    assert tried > 150 and served / tried == pytest.approx(own / of, abs=0.02)


async def test_over_a_lossy_link(exact64, made, monkeypatch):
    monkeypatch.setattr(lossless, "factory", lambda name: made)
    await lossless.brave_a_storm(exact64, "any")
