"""Pictures through real processes over real gRPC, as users send them."""

import base64
import json
import random
from contextlib import ExitStack
from functools import cache

import pytest
from openai import BadRequestError, OpenAI

from lab.testbed.processes import Process, free_port
from lab.testbed.vision_reference import VisionReference
from lab.training.vision.scenes import draw
from opensled.cli.main import main
from opensled.models.store import model_path
from tests.commands import opensled
from tests.vision_models import picture, vision_model

QUESTION, MOST = "what is in the picture?", 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and a picture beside it."""
    folder = vision_model(tmp_path_factory.mktemp("vision") / "seer")
    (folder.parent / "door.png").write_bytes(picture(1))
    return folder


@pytest.fixture(scope="module")
def words(folder):
    """What transformers alone writes, as ids and as text."""
    reference = VisionReference(folder)
    parts = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    ids, _ = reference.generate(
        reference.show([{"role": "user", "content": parts}], [picture(1)]), max_tokens=MOST
    )
    return ids, reference.decode(ids)


@pytest.fixture(scope="module")
def places(folder):
    """Addresses: of the server, of its own API, and of a device's."""
    http = f"127.0.0.1:{free_port()}"
    serve = ["serve", "--model", str(folder), "--dtype", "float64", "--listen", "127.0.0.1:0", "--http", http]
    with Process([*serve, "--json"]) as server:
        address = server.wait_ready()
        edge = ["edge", "--server", address, "--drafter", "lookup", "--http", "127.0.0.1:0"]
        with Process(edge) as device:
            yield address, http, device.wait_ready()


def test_generate_and_chat_show_a_picture(folder, places, words):
    address, *_ = places
    path = str(folder.parent / "door.png")
    asked = ("--server", address, "--drafter", "none", "--max-tokens", str(MOST), "--temperature", "0")
    done = opensled("generate", *asked, "--image", path, QUESTION, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == words[0]
    said = opensled("chat", *asked, input=f"/image {path}\n{QUESTION}\n")
    assert said.returncode == 0, said.stderr
    assert words[1] in said.stdout


def test_the_official_client_shows_it_at_a_device_and_at_the_server(places, words):
    url = f"data:image/png;base64,{base64.b64encode(picture(1)).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    for api in places[1:]:
        client = OpenAI(base_url=f"http://{api}/v1", api_key="none", timeout=120)
        answer = client.chat.completions.create(
            model="seer", temperature=0, max_tokens=MOST, messages=[{"role": "user", "content": parts}]
        )
        assert answer.choices[0].message.content == words[1]
        remote = [{"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}]
        with pytest.raises(BadRequestError, match="fetches nothing"):
            client.chat.completions.create(model="seer", messages=[{"role": "user", "content": remote}])


def test_a_hostile_file_is_refused_and_the_next_one_answered(places, words):
    _, http, _ = places
    client = OpenAI(base_url=f"http://{http}/v1", api_key="none", timeout=120)
    for data, status in (
        (picture(1)[:-300], "cannot be decoded"),
        (picture(1, width=8193), "the maximum is"),
    ):
        url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        bad = [{"type": "image_url", "image_url": {"url": url}}]
        with pytest.raises(BadRequestError, match=status) as caught:
            client.chat.completions.create(model="seer", messages=[{"role": "user", "content": bad}])
        assert caught.value.param == "messages"
        later = [{"role": "user", "content": bad}, {"role": "user", "content": QUESTION}]
        assert client.chat.completions.create(model="seer", max_tokens=2, messages=later).choices
    test_the_official_client_shows_it_at_a_device_and_at_the_server(places, words)


def test_other_targets_refuse_pictures_by_name(folder):
    serve = ["serve", "--model", "tiny", "--engine", "llamacpp", "--listen", "127.0.0.1:0", "--json"]
    with Process(serve) as server:
        asked = ("--server", server.wait_ready(), "--drafter", "none", QUESTION)
        done = opensled("generate", *asked, "--image", str(folder.parent / "door.png"))
    assert done.returncode and "reads text only" in done.stderr


# -- the model that comes with OpenSLED, and its draft --------------------------------------------------------

TOLD = "Describe the picture."


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A drawn scene that training has not seen."""
    path = tmp_path_factory.mktemp("scene") / "scene.png"
    draw(random.Random(3), "heldout").image.save(path, "PNG")
    return path


@pytest.fixture(scope="module")
def tiny_vision():
    """The address of a server whose own drafter is the one of this name."""
    serve = ["serve", "--model", "tiny-vision", "--engine", "torch", "--dtype", "float64"]
    with ExitStack() as stack:

        @cache
        def address(own):
            flags = ["--server-drafter", own, "--listen", "127.0.0.1:0", "--json"]
            return stack.enter_context(Process([*serve, *flags])).wait_ready()

        yield address


@pytest.fixture(scope="module")
def told(scene):
    """What transformers alone writes about the scene at a temperature: its ids."""
    seer = VisionReference(model_path("tiny-vision"))
    parts = [{"type": "image"}, {"type": "text", "text": TOLD}]
    prompt = seer.show([{"role": "user", "content": parts}], [scene.read_bytes()])

    @cache
    def ids(temperature):
        return seer.generate(prompt, temperature=temperature, seed=5, max_tokens=24)[0]

    return ids


# The server's drafter, the device's, and the temperature: each pair of two stands in one case; all three: `make
# test-long`.
DRAFTED = {
    ("none", 0.0): ("lookup", "llamacpp"),
    ("none", 0.8): ("none", "auto"),
    ("exit", 0.0): ("none", "auto"),
    ("exit", 0.8): ("lookup", "llamacpp"),
}
CASES = [
    pytest.param(own, drafter, temperature, marks=() if drafter in usual else pytest.mark.long)
    for (own, temperature), usual in DRAFTED.items()
    for drafter in ("none", "lookup", "llamacpp", "auto")
]


@pytest.mark.parametrize(("own", "drafter", "temperature"), CASES)
def test_tiny_vision_writes_the_same_with_every_drafter(tiny_vision, told, scene, own, drafter, temperature):
    asked = ("--server", tiny_vision(own), "--drafter", drafter, "--max-tokens", "24", "--threads", "1")
    shown = ("--image", str(scene), TOLD, "--temperature", str(temperature), "--seed", "5")
    done = opensled("generate", *asked, *shown, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == told(temperature)


def test_the_demo_shows_scenes_and_answers_that_are_the_targets_own(capsys):
    assert main(["demo", "--vision", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert len(answers) == 4 and all(each["same"] for each in answers)
    assert sum(each["accepted"] for each in answers) > 0, "the device drafts from the text"
