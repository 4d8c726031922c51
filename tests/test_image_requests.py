"""Pictures in the requests of the APIs: which forms are read, and what is refused, by which name."""

import base64
import json
from urllib.parse import quote

import pytest

from http_api.bodies import MAX_BODY, MAX_CHAT_BODY
from opensled.core.images import MAX_IMAGE_BYTES, MAX_IMAGES, ImageFacts, TurnImage, digest_of
from tests.fake_backend import FakeBackend, call, chat, refusal
from tests.vision_world import DATA, FACTS, TEXT, URL


def shown(url: object = URL, **extra: object) -> dict:
    return {"type": "image_url", "image_url": {"url": url, **extra}}


def words(text: str) -> dict:
    return {"type": "text", "text": text}


def turn(*content: dict) -> dict:
    return {"role": "user", "content": list(content)}


def asked(path: str, **body: object):
    """The images of the one prompt that a target that sees was asked with, and its text."""
    backend = FakeBackend(images=FACTS)
    answer = call(backend, path, content=json.dumps(body).encode())
    assert answer.status_code == 200, answer.text
    [turn] = [turn for turn in backend.tasks[0].prompt if turn.role == "user"]
    return turn.content, turn.images


def test_pictures_stand_where_they_are_among_the_words():
    parts = [words("left "), shown(), words("or right "), shown(detail="low"), words("?")]
    content, images = asked("/v1/chat/completions", messages=[{"role": "user", "content": parts}])
    assert content == "left or right ?"
    assert [placed.offset for placed in images] == [5, 14]
    assert all(isinstance(placed, TurnImage) for placed in images)


LINES = "\n".join(TEXT[start : start + 76] for start in range(0, len(TEXT), 76))
SPELLINGS = {
    "as usual": URL,
    "in lines": f"data:image/png;base64,{LINES}",
    "in lines of Windows": "data:image/png;base64," + LINES.replace("\n", "\r\n") + "\r\n",
    "without padding": f"data:image/png;base64,{TEXT.rstrip('=')}",
    "capitals": f"DATA:IMAGE/PNG;BASE64,{TEXT}",
    "letters of URLs": "data:image/png;base64," + base64.urlsafe_b64encode(DATA).decode(),
    "percent-encoded": f"data:image/png;base64,{quote(TEXT, safe='')}",
    "with a parameter": f"data:image/png;name=a.png;base64,{TEXT}",
    "no type": f"data:;base64,{TEXT}",
    "blanks around": f" data:image/png;base64, {TEXT} ",
}


@pytest.mark.parametrize("url", SPELLINGS.values(), ids=SPELLINGS)
def test_usual_spellings_of_base64_are_one_picture_in_every_api(url):
    said = {"type": "input_image", "image_url": {"url": url}, "detail": "auto"}
    asks = [
        ("/v1/chat/completions", {"messages": [turn(shown(url), words("what?"))]}),
        (
            "/v1/chat/completions",
            {"messages": [turn({"type": "image_url", "image_url": url}, words("what?"))]},
        ),
        (
            "/v1/responses",
            {"input": [turn({**said, "image_url": url}, {"type": "input_text", "text": "what?"})]},
        ),
        ("/v1/responses", {"input": [turn(said, {"type": "input_text", "text": "what?"})]}),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "what?", "images": [url.partition(",")[2]]}]},
        ),
        ("/api/generate", {"prompt": "what?", "images": [url]}),
    ]
    for path, body in asks:
        content, [placed] = asked(path, **body, **({"stream": False} if path.startswith("/api/") else {}))
        assert (content, placed.offset) == ("what?", 0), path
        assert placed.image.digest == digest_of(DATA) and placed.image.data == DATA, path


def refused(content: object, **info: object) -> dict:
    backend = FakeBackend(**{"images": FACTS, **info})
    body = json.dumps(chat(messages=[{"role": "user", "content": content}])).encode()
    error = refusal(call(backend, content=body))
    assert not backend.asked
    return error


PART = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("content", "param", "message"),
    [
        ([shown("https://example.org/cat.png")], f"{PART}.image_url.url", "fetches nothing"),
        ([shown("data:image/png;base64,AAAA")], f"{PART}.image_url.url", "not a readable image"),
        ([shown(7)], f"{PART}.image_url.url", "string"),
        ([{"type": "image_url", "image_url": 7}], f"{PART}.image_url", "string"),
        ([shown("data:image/png;base64,A")], f"{PART}.image_url.url", "encode the bytes"),
        ([shown("data:image/png;base64,A*A=")], f"{PART}.image_url.url", "encode the bytes"),
        ([shown("data:image/png," + TEXT)], f"{PART}.image_url.url", "not a base64 data URL"),
        ([{"type": "input_image", "file_id": "f"}], PART, "no files are stored here"),
        ([{"type": "input_audio"}], f"{PART}.type", "nothing here hears"),
        (
            [shown()] * (MAX_IMAGES + 1),
            f"messages[0].content[{MAX_IMAGES}].image_url.url",
            f"at most {MAX_IMAGES}",
        ),
    ],
)
def test_what_is_no_picture_is_refused_by_name(content, param, message):
    error = refused(content)
    assert error["param"] == param and message in error["message"]


OF_OLLAMA = [
    ("/api/chat", {"messages": [{"role": "user", "images": [TEXT, "AAAA"]}]}, "messages[0].images[1]"),
    ("/api/chat", {"messages": [{"role": "user", "images": ["https://g/a.png"]}]}, "messages[0].images[0]"),
    ("/api/generate", {"prompt": "a", "images": ["AAAA"]}, "images[0]"),
    ("/api/generate", {"prompt": "a", "system": "b", "images": [TEXT, "AAAA"]}, "images[1]"),
    ("/api/generate", {"prompt": "a", "images": [TEXT] * (MAX_IMAGES + 1)}, f"images[{MAX_IMAGES}]"),
    ("/api/generate", {"prompt": "a", "images": [TEXT], "raw": True}, "images need a chat, and raw"),
]


@pytest.mark.parametrize(("path", "body", "named"), OF_OLLAMA)
def test_pictures_of_ollama_s_clients_are_refused_in_their_words(path, body, named):
    answer = call(FakeBackend(images=FACTS), path, body)
    assert answer.status_code == 400 and answer.json()["error"].startswith(named)


def test_a_smaller_limit_of_the_server_counts():
    small = ImageFacts(token_id=3, rows=9, most=1, max_bytes=10)
    assert "at most 10" in refused([shown()], images=small)["message"]
    assert "at most 1" in refused([shown(), shown()], images=small)["message"]
    assert MAX_IMAGE_BYTES > 10


def test_bodies_of_chats_may_be_larger_for_their_pictures():
    for path, most in (("/v1/chat/completions", MAX_CHAT_BODY), ("/tokenize", MAX_BODY)):
        assert refusal(call(FakeBackend(), path, content=b" " * most), 400)
        assert refusal(call(FakeBackend(), path, content=b" " * (most + 1)), 413)


@pytest.mark.parametrize("sees", [True, False])
def test_the_description_has_pictures_where_the_target_sees(sees):
    described = call(FakeBackend(images=FACTS if sees else None), "/openapi.json", method="GET").text
    assert ('"enum":["image_url"]' in described) == ('"enum":["input_image"]' in described) == sees
