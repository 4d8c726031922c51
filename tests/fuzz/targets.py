"""The targets by name: what is done with a fuzzer's bytes. Whatever they are, only errors of ours may come out."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edge_client.link import tokenizer_cache
from opensled.cli import config_layers
from opensled.core.errors import OpenSledError
from opensled.core.images import FORMATS, MAX_PIXELS, MAX_SIDE
from opensled.core.messages import Guide
from opensled.drafting import table_file
from opensled.drafting.tables import FrozenTable, LruTable
from opensled.models.gguf_file import read_head
from opensled.models.hub_listing import MAX_BYTES, HubFile, read_listing, select, without_strays
from opensled.models.hub_names import HubName
from opensled.text.answer_text import StopStrings, TextStream
from opensled.text.held_schema import reduce
from opensled.text.tokenizer import TargetTokenizer
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec
from tests.fuzz import (
    answers,
    bodies,
    chats,
    draft_servers,
    drafting,
    files,
    handout,
    kept,
    messages,
    pairing,
    schemas,
    streams,
)
from tests.fuzz.choices import Choices
from tests.fuzz.rooms import Counter
from tests.fuzz.streams import OPEN, RATIO
from tests.small_tokenizer import small_tokenizer
from tests.tiny_drafts import tiny_info
from tests.vision_models import picture
from verify_server.access.security import read_tenants
from verify_server.options.serve_config import ServeConfig
from verify_server.text.guide import GrammarRebuilt, GuideCompiler
from verify_server.vision.decoding import pixels_of

counter = cache(Counter)
SAID = pb.ServerMessage(
    verdict=pb.Verdict(base=3, tokens=[1, 2], finish_reason="eos", hint=3)
).SerializeToString()
TOLD = codec.encode_info(tiny_info()).SerializeToString()


def client_message(data: bytes) -> None:
    """Bytes as a `ClientMessage`; what is understood survives another trip."""
    with contextlib.suppress(OpenSledError, codec.Malformed):
        wire = codec.encode_client(codec.decode_client(pb.ClientMessage.FromString(data)))
        assert codec.encode_client(codec.decode_client(wire)).SerializeToString() == wire.SerializeToString()


def server_message(data: bytes) -> None:
    """Bytes as a `ServerMessage`."""
    with contextlib.suppress(OpenSledError, codec.Malformed):
        wire = codec.encode_server(codec.decode_server(pb.ServerMessage.FromString(data)))
        assert codec.encode_server(codec.decode_server(wire)).SerializeToString() == wire.SerializeToString()


def describe_reply(data: bytes) -> None:
    """Bytes as a `DescribeReply`, and a tokenizer that is or is not the one it announces."""

    async def fetch() -> bytes:
        return small_tokenizer()

    with contextlib.suppress(OpenSledError, codec.Malformed):
        info = codec.decode_info(pb.DescribeReply.FromString(data))
        assert codec.decode_info(codec.encode_info(info)) == info
        asyncio.run(tokenizer_cache.load(info, fetch))


def tokenizer_json(data: bytes) -> None:
    """The bytes of a tokenizer.json: as they are, or as a change to a good one."""
    choose = Choices(data)
    content = bodies.changed_json(json.loads(small_tokenizer()), choose) if choose.flag() else choose.rest()
    with contextlib.suppress(OpenSledError):
        tokenizer = TargetTokenizer(content)
        stream, stops = TextStream(tokenizer), StopStrings(["a", "bc"])
        shown = stops.push(stream.push(range(60))) + stops.push(stream.flush()) + stops.flush()
        assert isinstance(shown, str) and len(tokenizer.pieces) < 10**6
        tokenizer.encode('{"a": [1]}')


def posted(path: str, known: dict[str, object]) -> Callable[[bytes], None]:
    """The body of a request, made of the fields that are known."""
    return lambda data: counter().ask(path, bodies.body(Choices(data), known))


def page_switch_body(data: bytes) -> None:
    """The body of a switch on a server's page: it finds a device that is known, and makes none."""
    room, choose = counter(), Choices(data)
    known = choose.byte() < 200
    status = room.ask(
        "/page/devices",
        bodies.changed_json(bodies.PAGE_SWITCH, choose) if known else bodies.body(choose, bodies.PAGE_SWITCH),
    )
    assert isinstance(room.kitchen.drafting, bool) and len(room.records.latest()) == 1
    assert status == 200 or room.kitchen.drafting
    room.kitchen.drafting = True


def message_body(data: bytes) -> None:
    """The body of a request for a message of Anthropic's API, or for its tokens."""
    choose = Choices(data)
    path = choose.pick(("/v1/messages", "/v1/messages/count_tokens"))
    counter().ask(path, bodies.body(choose, bodies.MESSAGE))


@cache
def _guides() -> GuideCompiler:
    return GuideCompiler(small_tokenizer(), 52, (0,), "")


def guide(data: bytes) -> None:
    """A JSON schema, and an answer that it guides."""
    _guided(data.decode(errors="replace"))


def schema(data: bytes) -> None:
    """A schema of known keywords with any values, and an answer that it guides."""
    _guided(json.dumps(schemas.schema(Choices(data))))


def held_schema(data: bytes) -> None:
    """The same without the compiler, also as a schema that is held less closely."""
    made = schemas.schema(Choices(data), 8)
    for coarse in (False, True):
        with contextlib.suppress(OpenSledError):
            found = reduce(made, "schema", coarse)
            assert json.loads(json.dumps(found.schema)) == found.schema
            assert all(isinstance(path, str) for path in found.left_out)


def _guided(schema: str) -> None:
    with contextlib.suppress(OpenSledError, GrammarRebuilt):
        constraint = _guides().start(Guide(json_schema=schema), ())
        for _ in range(12):
            mask = constraint.next_masks([1, 2])[0]
            allowed = [id for id in range(52) if mask[id // 8] >> id % 8 & 1]
            constraint.commit(allowed[:1])


@cache
def _scratch() -> Path:
    handle, name = tempfile.mkstemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    os.close(handle)
    Path(name).chmod(0o600)
    return Path(name)


_ticks = itertools.count(1)


def token_file(data: bytes) -> None:
    """The lines of a token file."""
    _scratch().write_bytes(data)
    with contextlib.suppress(OpenSledError):
        assert not read_tenants(_scratch()).anonymous


def draft_table(data: bytes) -> None:
    """A draft table, and what a drafter makes of it: a frozen one, and a personal one that starts with its rows."""
    _scratch().write_bytes(files.draft_table(Choices(data)))
    with contextlib.suppress(OpenSledError):
        read = table_file.read(_scratch())
        frozen, personal = FrozenTable(read.rows, read.vocab_size), LruTable(read.shape)
        personal.restore(read.rows)
        for table in (frozen, personal):
            for follower in table.followers((1, 2)):
                assert len(follower) <= read.shape.follower


def gguf_head(data: bytes) -> None:
    """The head of a GGUF file."""
    _scratch().write_bytes(files.gguf_head(Choices(data)))
    os.utime(_scratch(), ns=(next(_ticks), next(_ticks)))  # its reader knows the last file again by its time
    with contextlib.suppress(OpenSledError):
        read_head(_scratch())


def hub_listing(data: bytes) -> None:
    """What a hub says of a repository: its listing, and the index of its weights."""
    choose = Choices(data)
    known = files.HUB_INDEX if choose.byte() > 200 else files.HUB_LISTING
    content = bodies.changed_json(known, choose) if choose.byte() < 230 else choose.rest()
    with contextlib.suppress(OpenSledError):
        if known is files.HUB_INDEX:
            without_strays([HubFile("model.safetensors", 1, "", "")], content)
            return
        listing = read_listing(content, "org/repo")
        for name in listing.files:
            assert (Path("/a/b") / name).resolve().is_relative_to("/a/b")
        selection = select(listing, HubName("org/repo", choose.pick(("", "Q4_K_M"))))
        assert all(0 <= file.most <= MAX_BYTES for file in selection.files)


def config_file(data: bytes) -> None:
    """A configuration file."""
    _scratch().write_bytes(data)
    with contextlib.suppress(OpenSledError):
        config_layers.resolve(ServeConfig, "serve", {}, {}, [_scratch()])


def image(data: bytes) -> None:
    """Bytes as the file of a picture; what is decoded is within the limits."""
    with contextlib.suppress(OpenSledError):
        height, width, colours = pixels_of(data).shape
        assert 0 < height * width <= MAX_PIXELS and max(height, width) <= MAX_SIDE and colours == 3


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], None]
    share: int  # of the runs; the cheap ones get more
    seeds: tuple[bytes, ...]


def noise(count: int = 20) -> tuple[bytes, ...]:
    """Decisions to start from, always the same."""
    rng = random.Random(1)
    return tuple(rng.randbytes(20 + 15 * number) for number in range(count))


CLIENTS = tuple(messages.client_message(Choices(data)) for data in noise(40))
SERVERS = tuple(messages.server_message(Choices(data)) for data in noise(40))
GUIDED = (
    b'{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}',
    b'{"enum": [1, "a"]}',
)

REQUESTED = b'{"host": "hub.local", "name": "kitchen"}'
GRANTED = b'{"server": "hub:7411", "authority": "", "token": "' + b"ab" * 32 + b'", "name": "kitchen"}'
QUERY = bytes.fromhex(
    "000084000000000100000000095f6f70656e736c6564045f746370056c6f63616c00000c000100000078000603707463c00c"
)

PICTURES = tuple(picture(1, kind, 5, 4) for kind in FORMATS.values())

TARGETS = {
    "client_message": Target(client_message, 24, (OPEN, RATIO, *CLIENTS)),
    "server_message": Target(server_message, 18, (SAID, *SERVERS)),
    "server_open": Target(streams.server_open, 8, noise()),
    "server_draft": Target(streams.server_draft, 8, noise()),
    "server_proposals": Target(drafting.server_proposals, 8, noise()),
    "confidences": Target(drafting.confidences, 8, noise()),
    "server_cancel": Target(streams.server_cancel, 6, noise()),
    "server_stream": Target(streams.server_stream, 8, noise()),
    "device_stream": Target(streams.device_stream, 8, noise()),
    "relay_stream": Target(streams.relay_stream, 8, noise()),
    "describe_reply": Target(describe_reply, 4, (TOLD,)),
    "tokenizer_json": Target(tokenizer_json, 3, (b"\0" + small_tokenizer(), *noise())),
    "chat_body": Target(posted("/v1/chat/completions", bodies.CHAT), 5, noise()),
    "completion_body": Target(posted("/v1/completions", bodies.COMPLETION), 3, noise()),
    "page_chat_body": Target(posted("/page/chat", bodies.PAGE_CHAT), 3, noise()),
    "page_switch_body": Target(page_switch_body, 2, noise()),
    "response_body": Target(posted("/v1/responses", bodies.RESPONSE), 4, noise()),
    "message_body": Target(message_body, 4, noise()),
    "ollama_chat_body": Target(posted("/api/chat", bodies.OLLAMA_CHAT), 3, noise()),
    "ollama_generate_body": Target(posted("/api/generate", bodies.OLLAMA_GENERATE), 2, noise()),
    "image": Target(image, 4, PICTURES),
    "guide": Target(guide, 1, GUIDED),
    "schema": Target(schema, 1, noise()),
    "held_schema": Target(held_schema, 4, noise()),
    "chat_forms": Target(chats.chat_forms, 2, noise()),
    "template_files": Target(chats.template_files, 2, noise()),
    "answer_marks": Target(answers.answer_marks, 8, noise()),
    "pasted_name": Target(answers.pasted_name, 4, noise()),
    "draft_table": Target(draft_table, 4, noise()),
    "gguf_head": Target(gguf_head, 4, noise()),
    "kept_text": Target(kept.kept_text, 1, noise()),
    "hub_listing": Target(hub_listing, 4, noise()),
    "draft_manifest": Target(handout.draft_manifest, 4, noise()),
    "draft_reply": Target(handout.draft_reply, 2, handout.REPLIED),
    "draft_asked": Target(handout.draft_asked, 2, (handout.ASKED,)),
    "pairing_server": Target(pairing.pairing_server, 1, noise(8)),
    "pairing_device": Target(pairing.pairing_device, 1, noise(8)),
    "pairing_messages": Target(pairing.pairing_messages, 2, (REQUESTED, GRANTED)),
    "mdns_record": Target(pairing.mdns_record, 4, (QUERY, *noise())),
    "token_file": Target(token_file, 2, (b"abc kitchen max_sessions=3\n# comment\n",)),
    "draft_server": Target(draft_servers.draft_server, 4, noise()),
    "draft_server_document": Target(draft_servers.draft_server_document, 1, noise()),
    "config_file": Target(config_file, 2, (b'[serve]\nmodel = "tiny"\nmax-draft = 8\n',)),
}
