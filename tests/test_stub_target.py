"""The target that writes what its prompt dictates, really served, and asked over a device and over its own API."""

import httpx
import pytest

from lab.testbed.processes import Process, free_port
from tests.stub_target import SINGLE_BYTES

ANSWER = "Töpfe, 鍋 and <b>pots</b>:\n\n```json\n{}\n```\n🍲"


@pytest.fixture(scope="module")
def apis():
    """URLs of the server's own API and of a device's, whose drafter knows the answers."""
    own = f"127.0.0.1:{free_port()}"
    words = ["serve", "--engine", "tests.stub_target:load", "--listen", "127.0.0.1:0", "--http", own]
    with Process(words, isolated=True) as server:
        drafter = ["--server", server.wait_ready(), "--drafter", "tests.stub_target:Oracle"]
        with Process(["edge", *drafter, "--http", "127.0.0.1:0"], isolated=True) as device:
            yield {"server": f"http://{own}/v1", "device": f"http://{device.wait_ready()}/v1"}


def asked(api: str, dictated: bytes, more: str = "") -> httpx.Response:
    chat = [{"role": "user", "content": f"WRITE{dictated.hex()}END{more}"}]
    body = {"model": "tiny", "messages": chat, "temperature": 0, "max_tokens": 400}
    return httpx.post(f"{api}/chat/completions", json=body, timeout=120)


@pytest.mark.parametrize("api", ["server", "device"])
def test_the_dictated_text_is_the_answer(apis, api):
    accepted = 0
    # The target writes in milliseconds: a device on a busy machine may have no draft in time for one answer
    for _ in range(1 if api == "server" else 100):
        found = asked(apis[api], ANSWER.encode()).json()
        assert found["choices"][0]["message"]["content"] == ANSWER
        assert found["choices"][0]["finish_reason"] == "stop"
        accepted += found["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
        if accepted:
            break
    assert (accepted > 0) == (api == "device")


@pytest.mark.parametrize("api", ["server", "device"])
def test_bytes_that_are_no_text_are_written_as_well(apis, api):
    found = asked(apis[api], SINGLE_BYTES + "ö".encode() + b" \xc3( \xe2\x82").json()
    assert found["choices"][0]["message"]["content"] == "ö \ufffd( \ufffd"
    assert found["usage"]["completion_tokens"] == 9  # one for each of eight bytes, and the end


@pytest.mark.parametrize("api", ["server", "device"])
def test_logits_that_are_not_finite_are_an_error(apis, api):
    found = asked(apis[api], b"lamp", "NANAT")
    assert found.status_code == 500 and found.json()["error"]["code"] == "non_finite_logits"
