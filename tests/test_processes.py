"""Real processes over real gRPC, driven as users drive them: the CLI and the official OpenAI client."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from openai import OpenAI

from edge_client.doctor import short_answers
from edge_client.doctor.drafting_gain import predict
from lab.testbed.processes import free_port
from lab.testbed.reference import Reference
from opensled.models.store import model_path
from tests.commands import opensled
from tests.tiny_models import random_model
from tests.tiny_processes import STORY, client_of, edge, prompts, serve

DRAFTERS = ("lookup", "llamacpp", "onnx")


def generate(server, *arguments):
    done = opensled("generate", "--server", server, "--threads", "1", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def own_api():
    """The address of the server's own API."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def server(own_api):
    # It waits for every draft: whether one is accepted does not hang on the speed of the machine.
    waits = ("--policy", "fcfs", "--draft-wait", "inf")
    with serve("127.0.0.1:0", "tiny", "--http", own_api, *waits) as process:
        yield process.wait_ready()


@pytest.fixture(scope="module")
def device(server):
    with edge(server) as process:
        yield client_of(process)


@pytest.fixture(scope="module")
def deviceless(server, own_api):
    """A client of the server itself."""
    return OpenAI(base_url=f"http://{own_api}/v1", api_key="none", timeout=120)


@pytest.fixture(params=["device", "deviceless"])
def client(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def story(reference):
    """What the target alone answers to STORY, with these parameters: its ids."""

    @cache
    def ids(**params):
        return reference.generate(reference.render_chat(STORY), **params)[0]

    return ids


@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.8", "--seed", "7")], ids=["greedy", "T=0.8"])
def test_generate_gives_the_same_ids_with_every_drafter(server, sampling):
    """Each sampling has a prompt of its own; the commands run side by side."""
    common = [prompts(2)[bool(sampling)], "--max-tokens", "40", *sampling]
    with ThreadPoolExecutor() as pool:
        answers = pool.map(
            lambda drafter: generate(server, "--drafter", drafter, *common), ("none", *DRAFTERS)
        )
        plain, *drafted = answers
    assert plain["rule"] == "match"
    assert plain["rounds"] == 0 and plain["server_decoded"] == len(plain["token_ids"])
    for drafter, answer in zip(DRAFTERS, drafted, strict=True):
        for field in ("token_ids", "text", "finish_reason"):
            assert answer[field] == plain[field], (drafter, field)


def test_the_openai_client_streams_a_chat_answer_with_usage(client, reference, story, request):
    expected = story(max_tokens=48)
    stream = client.chat.completions.create(
        model="tiny", messages=STORY, max_tokens=48, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == reference.decode(
        expected
    )
    usage = chunks[-1].usage
    assert usage.completion_tokens == len(expected)
    details = usage.completion_tokens_details
    assert details.rejected_prediction_tokens >= 0
    assert (details.accepted_prediction_tokens > 0) == (request.node.callspec.params["client"] == "device")


def test_a_sampled_answer_is_the_targets_own(client, reference, story):
    expected = story(temperature=0.9, top_p=0.95, seed=-5, max_tokens=40)
    answer = client.chat.completions.create(
        model="tiny", messages=STORY, max_tokens=40, temperature=0.9, top_p=0.95, seed=-5
    )
    assert answer.choices[0].message.content == reference.decode(expected)


def test_a_stop_string_across_tokens_ends_the_answer(client, reference, story):
    whole = reference.decode(story(max_tokens=48))
    stop = whole[20:27]
    answer = client.chat.completions.create(
        model="tiny", messages=STORY, max_tokens=48, temperature=0, stop=stop
    )
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_raw_completion(client, reference):
    prompt = "def add(a, b):\n"
    expected, _ = reference.generate(reference.encode(prompt), max_tokens=20)
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=20, temperature=0)
    assert answer.choices[0].text == reference.decode(expected)


LIGHT = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
GUIDED = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "light", "schema": LIGHT}}},
    "tools": {
        "tools": [{"type": "function", "function": {"name": "light", "parameters": LIGHT}}],
        "tool_choice": "required",
    },
}


@pytest.mark.parametrize("guide", GUIDED)
def test_guided_answers_are_the_same_with_and_without_a_device(device, deviceless, guide):
    answers = [
        client.chat.completions.create(
            model="tiny", messages=STORY, temperature=0.9, seed=4, max_tokens=60, **GUIDED[guide]
        )
        for client in (device, deviceless)
    ]
    texts = [
        answer.choices[0].message.content or answer.choices[0].message.tool_calls[0].function.arguments
        for answer in answers
    ]
    assert texts[0] == texts[1] and set(json.loads(texts[0])) == {"on"}


def test_clients_of_both_kinds_at_once_read_what_the_target_writes(device, deviceless, reference, story):
    wanted = [{"temperature": 0.8, "seed": seed} for seed in range(3)] + [{"temperature": 0}]

    def answer(client, params):
        created = client.chat.completions.create(model="tiny", messages=STORY, max_tokens=32, **params)
        return created.choices[0].message.content

    asked = [(client, params) for params in wanted for client in (device, deviceless)]
    with ThreadPoolExecutor(len(asked)) as pool:
        texts = list(pool.map(lambda pair: answer(*pair), asked))
    expected = [reference.decode(story(max_tokens=32, **params)) for params in wanted]
    assert texts == [text for text in expected for _ in range(2)]


def test_sigkill_of_the_server_in_mid_answer_loses_and_changes_nothing(reference, story):
    expected = story(temperature=0.8, seed=3, max_tokens=120, ignore_eos=True)
    with serve() as first, edge(address := first.wait_ready()) as device:
        client = client_of(device)
        stream = client.chat.completions.create(
            model="tiny", messages=STORY, temperature=0.8, seed=3, max_tokens=120, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        chunks = iter(stream)
        text = ""
        while not text:
            text += next(chunks).choices[0].delta.content or ""
        first.kill()
        with serve(address) as second:
            second.wait_ready()
            for chunk in chunks:
                text += chunk.choices[0].delta.content or ""
    assert text == reference.decode(expected)
    assert json.loads(second.lines[-1])["steps"] > 0  # it was really in mid-answer


def test_a_target_without_chat_template_or_eos_works_raw(tmp_path):
    folder = random_model("qwen2", tmp_path / "plain", vocab_size=2048, eos_token_id=None)
    tokenizer = json.loads((model_path("tiny") / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    reference = Reference(folder)
    expected, _ = reference.generate(reference.encode("one two"), max_tokens=12)
    with serve(model=folder) as process:
        address = process.wait_ready()
        drafted = generate(address, "--drafter", "lookup", "one two", "--raw", "--max-tokens", "12")
        assert drafted["token_ids"] == expected and drafted["finish_reason"] == "length"
        chat = opensled("generate", "--server", address, "one two", "--drafter", "none")
        assert chat.returncode == 1 and "--raw" in chat.stderr and chat.stderr.count("\n") == 1


def test_exit_codes_and_one_line_errors(tmp_path):
    unreachable = opensled("generate", "--server", "127.0.0.1:1", "--drafter", "none", "x")
    assert unreachable.returncode == 5 and unreachable.stderr.count("\n") == 1
    missing = opensled("serve", "--model", "no-such-model")
    assert missing.returncode == 3 and "tiny" in missing.stderr and missing.stderr.count("\n") == 1
    exposed = opensled("serve", "--listen", "0.0.0.0:0")
    assert exposed.returncode == 2 and "--insecure" in exposed.stderr
    assert opensled("generate").returncode == 2


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_an_idle_edge_without_a_model_is_small(server):
    with edge(server, "lookup") as device:
        device.wait_ready()
        assert resident_mb(device.process.pid) <= 80


@pytest.mark.timed
def test_the_server_starts_quickly_enough_to_wait_for(cold_start):
    started = time.monotonic()
    with serve() as process:
        process.wait_ready()
    assert time.monotonic() - started < 90


@pytest.fixture
def advice_free_server():
    """It waits for every draft and gives no hints: how much is drafted does not hang on the machine's speed."""
    with serve("127.0.0.1:0", "tiny", "--policy", "fcfs", "--draft-wait", "inf") as process:
        yield process.wait_ready()


def test_the_doctors_short_answers_count_what_drafts_bring(advice_free_server, monkeypatch, capsys):
    for name, value in {"ENOUGH_S": 0.0, "TOKENS": 24, "PLAIN_TOKENS": 8, "WARMING": 8}.items():
        monkeypatch.setattr(short_answers, name, value)
    config = {
        "server": advice_free_server,
        "drafter": "onnx",
        "draft_model": "tiny-draft",
        "threads": 1,
        "stop": "fixed",
    }
    assert short_answers.main(json.dumps(config)) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    words = {step["step"]: step["words"] for step in steps if "words" in step}
    assert words["drafter"].startswith("onnx") and words["why"] and "share it" in words["vocabulary"]
    answers = [step for step in steps if step["step"] == "answer"]
    kinds = [each["kind"] for each in answers if each["drafts"]]
    assert kinds[: len(short_answers.PROMPTS)] == list(short_answers.PROMPTS)
    assert sum(each["drafted"] for each in answers if each["drafts"]) > 0
    assert all(each["drafted"] == 0 for each in answers if not each["drafts"])
    found = predict(steps)
    assert found.rate > 0 and found.own_rate > 0 and 0 < found.accepted < found.drafted
