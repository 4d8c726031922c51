"""Schemas that cost a few bytes to send and everything to compile: refused at once, or ended at a limit."""

import gc
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from opensled.core.errors import InvalidRequest, Overloaded
from opensled.core.messages import Guide, Tool
from opensled.process.fork_frames import ForkLimits
from opensled.process.fork_server import STOP, Cancelled, ForkServer, Stop
from tests.guiding import EOS, PADDED, TINY, schema_guide, tiny
from verify_server.text import grammar_compiler, tool_grammar
from verify_server.text.guide import GrammarMemory, GuideCompiler

ENDLESS = {"type": "integer", "multipleOf": 99_999_989}  # compiles for minutes, in gigabytes
SHORT = ForkLimits(seconds=0.3, memory=grammar_compiler.LIMITS.memory)
MULTIPLES = [
    {"multipleOf": 99_999_989},
    {"multipleOf": 999_983},
    {"multipleOf": 65_536_000},
    {"multipleOf": 9999e3},
    {"multipleOf": 999.983},
    {"anyOf": [{"multipleOf": 991}, {"multipleOf": 983}], "multipleOf": 997},
    {"$ref": "#/$defs/a", "multipleOf": 997, "$defs": {"a": {"multipleOf": 991}}},
    {"allOf": [{"multipleOf": 307}, {"multipleOf": 311}]},
    {"properties": {f"p{number}": {"multipleOf": 997 + number} for number in range(20)}},
]


def compiler() -> GuideCompiler:
    """tiny's, with a process of its own."""
    return GuideCompiler((TINY / "tokenizer.json").read_bytes(), PADDED, (EOS,), "")


@pytest.fixture
def hard_limit_alone(monkeypatch):
    """A compiler that knows no keyword to refuse, and ends early."""
    monkeypatch.setattr(tool_grammar, "MAX_MULTIPLE", 10**12)
    guides = compiler()
    guides._forks = ForkServer(grammar_compiler.HANDLER, guides._compiler.setup(), SHORT)
    yield guides
    guides.close()


@pytest.mark.parametrize("schema", MULTIPLES, ids=str)
def test_multiples_that_take_seconds_are_refused_by_name(schema):
    started = time.process_time()
    with pytest.raises(InvalidRequest, match=f"multipleOf.*{tool_grammar.MAX_MULTIPLE}") as refusal:
        tiny().start(schema_guide(schema), ())
    assert refusal.value.field == "response_format"
    assert time.process_time() - started < 0.5


def test_the_tools_are_bounded_too():
    tool = Tool("count", "", json.dumps({"properties": {"n": ENDLESS}}), strict=True)
    with pytest.raises(InvalidRequest, match="multipleOf") as refusal:
        tiny().start(Guide(tools=(tool,), tool_choice="required"), ())
    assert refusal.value.field == "tools"


@pytest.mark.parametrize(
    "multiple", [0.01, 1e-7, 5, 0.25, 1000, 10**6, 9_999, True, "7", None, [], 10**4000, 1e300, float("inf")]
)
def test_usual_multiples_are_served_or_refused_by_the_compiler(multiple):
    try:
        tiny().start(schema_guide({"type": "number", "multipleOf": multiple}), ())
    except InvalidRequest as refusal:
        assert "add up" not in str(refusal)


def test_a_schema_that_compiles_for_ever_is_ended_and_the_next_one_is_served(hard_limit_alone):
    with pytest.raises(InvalidRequest, match=r"0\.3 s of processor time") as refusal:
        hard_limit_alone.start(schema_guide(ENDLESS), ())
    assert refusal.value.field == "response_format"
    hard_limit_alone.start(schema_guide({"type": "integer"}), ())


def test_a_schema_that_takes_gigabytes_is_ended(hard_limit_alone):
    limits = ForkLimits(seconds=20.0, memory=grammar_compiler.COMPILER_STACK + (24 << 20))
    hard_limit_alone._forks = ForkServer(grammar_compiler.HANDLER, hard_limit_alone._compiler.setup(), limits)
    with pytest.raises(InvalidRequest, match="MB of memory"):
        hard_limit_alone.start(schema_guide(ENDLESS), ())


def test_a_cancelled_compile_frees_its_thread(hard_limit_alone):
    limits = ForkLimits(seconds=600.0, memory=64 << 30)
    hard_limit_alone._forks = ForkServer(grammar_compiler.HANDLER, hard_limit_alone._compiler.setup(), limits)
    hard_limit_alone._forks.start()
    stop, entered = Stop(), Future()

    def start() -> None:
        STOP.set(stop)
        entered.set_result(None)
        hard_limit_alone.start(schema_guide(ENDLESS), ())

    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(start)
        entered.result()
        stop.set()
        assert isinstance(compiling.exception(timeout=20), Cancelled)


def test_a_repeated_schema_is_checked_once(monkeypatch):
    guides, asked = compiler(), []
    monkeypatch.setattr(guides._forks, "ask", lambda question: asked.append(question) or b'{"bytes": 1}')
    for _ in range(3):
        guides.start(schema_guide({"type": "integer"}), ())
    assert len(asked) == 1


def test_the_memory_of_live_grammars_is_bounded_by_tenant_and_in_all(monkeypatch):
    guides = compiler()
    guides.memory = GrammarMemory(tenant_bytes=1_000_000, all_bytes=1_700_000)
    monkeypatch.setattr(guides._forks, "ask", lambda question: b'{"bytes": 400000}')
    guide = schema_guide({"type": "integer"})
    held = [guides.start(guide, (), "one"), guides.start(guide, (), "two")]
    for tenant in ("one", "two", "three"):
        with pytest.raises(Overloaded) as refusal:
            guides.start(guide, (), tenant)
        assert refusal.value.retry_after > 0
    held.pop()
    gc.collect()
    guides.start(guide, (), "three")
    with pytest.raises(InvalidRequest):  # what is refused takes nothing
        guides.start(schema_guide({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), (), "three")
    guides.start(guide, (), "three")


def test_a_grammar_that_is_collected_while_another_one_is_counted_blocks_nothing():
    """A collection of garbage may run anywhere, so also where the memory is being counted."""
    memory = GrammarMemory()
    give_back = memory.take("a", 1)

    def collected() -> None:
        with memory._lock:
            give_back()

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and not memory._taken
