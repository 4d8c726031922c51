"""The operator's side: what may be published, serials that only grow, rollback, deletion; `opensled drafts`."""

import json
import stat
from pathlib import Path

import pytest

from adapt.handout.draft_store import KEPT, DraftStore
from adapt.handout.publisher import roll_back
from adapt.shelf.draft_manifest import MAX_BYTES, MAX_FILES, MAX_MANIFEST, read_manifest
from adapt.shelf.signature import Signed, SigningKey, read_signer
from opensled.cli import main as cli
from opensled.core.errors import (
    DraftRefused,
    InvalidRequest,
    NotFound,
    OpenSledError,
    ProtocolError,
    UsageError,
)
from opensled.core.messages import Failure
from opensled.v1 import verify_pb2 as pb
from opensled.wire import draft_codec
from tests.handed_out import (
    GGUF,
    KEY,
    KITCHEN,
    STRANGER,
    WEIGHTS,
    adapted,
    handed,
    manifest,
    signed,
    store_with,
)
from verify_server.options.serve_config import ServeConfig
from verify_server.start.command import serve


@pytest.fixture
def key(tmp_path) -> Path:
    path = tmp_path / "drafts.key"
    path.write_bytes(KEY.pem)
    path.chmod(0o600)
    return path


@pytest.fixture
def drafts(tmp_path, key, capsys):
    """Runs `opensled drafts VERB ...` with the store and the key; (exit code, what it printed)."""

    def run(verb: str, *words: str, signs: bool = True) -> tuple[int, str]:
        more = ["--sign-key", str(key)] if signs else []
        code = cli.main(["drafts", verb, *words, "--store", str(tmp_path / "store"), *more])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def published(drafts, folder: Path, *words: str) -> dict:
    code, said = drafts("publish", str(folder), "--tenant", "kitchen", "--json", *words)
    assert code == 0, said
    return json.loads(said)


def test_a_draft_that_passed_its_gate_is_published(tmp_path, drafts):
    told = published(drafts, adapted(tmp_path / "mine"))
    assert (told["serial"], told["tenant"], told["name"], told["passed"]) == (1, "kitchen", "mine", True)
    assert [each["name"] for each in told["files"]] == [GGUF]
    found = DraftStore(tmp_path / "store").newest("kitchen")
    assert found is not None
    draft = read_signer(told["signer"]).verify(Signed(found.manifest, found.signature))
    assert draft.after[0].acceptance == 0.9
    code, said = drafts("list", signs=False)
    assert code == 0 and "kitchen:\n  mine, serial 1" in said and "(handed out)" in said


def test_what_passed_no_gate_is_not_published_without_a_word(tmp_path, drafts):
    bare = tmp_path / GGUF
    bare.write_bytes((adapted(tmp_path / "mine") / GGUF).read_bytes())
    for path in (bare, adapted(tmp_path / "failed", passes=False)):
        code, said = drafts("publish", str(path), "--tenant", "kitchen")
        assert code == 2 and "not passed the gate" in said and "--ungated" in said
    told = published(drafts, bare, "--ungated", "--name", "by hand")
    assert told["passed"] is False and told["name"] == "by hand"


def test_what_changed_since_it_was_measured_is_not_published(tmp_path, drafts):
    folder = adapted(tmp_path / "mine")
    with (folder / GGUF).open("ab") as file:
        file.write(b"\0")
    code, said = drafts("publish", str(folder), "--tenant", "kitchen")
    assert code == 2 and "not the file that opensled adapt measured" in said
    assert DraftStore(tmp_path / "store").newest("kitchen") is None
    assert published(drafts, folder, "--ungated")["passed"] is False


@pytest.mark.parametrize(
    ("name", "said"),
    [("none", "opensled adapt writes one"), ("x y.gguf", "cannot be handed out under this name")],
)
def test_what_is_no_draft(tmp_path, drafts, name, said):
    (tmp_path / "x y.gguf").write_bytes(b"GGUF")
    code, told = drafts("publish", str(tmp_path / name), "--tenant", "kitchen", "--ungated")
    assert code in (2, 3) and said in told


def test_damaged_files_are_errors_in_one_line(tmp_path, drafts):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    folder = adapted(tmp_path / "mine")
    (folder / "adapted.json").write_text('{"before": [1]')
    for path, part in ((broken, "not a readable GGUF file"), (folder, "cannot be read")):
        code, said = drafts("publish", str(path), "--tenant", "kitchen", "--ungated")
        assert code != 0 and part in said and said.count("\n") == 1


def test_serials_only_grow_also_over_a_deletion(tmp_path, drafts):
    folder = adapted(tmp_path / "mine")
    assert [published(drafts, folder)["serial"] for _ in range(2)] == [1, 2]
    code, said = drafts("delete", "kitchen", signs=False)
    assert code == 0 and "deleted 2 drafts" in said
    assert not list((tmp_path / "store/files").iterdir())
    assert drafts("delete", "kitchen", signs=False)[0] == 3
    assert published(drafts, folder)["serial"] == 3
    assert published(drafts, folder, "--serial", "9")["serial"] == 9
    code, said = drafts("publish", str(folder), "--tenant", "kitchen", "--serial", "9")
    assert code == 2 and "only higher ones" in said


def test_a_rollback_is_published_anew(tmp_path, drafts):
    first = published(drafts, adapted(tmp_path / "first"))
    weights = (tmp_path / "first" / GGUF).read_bytes()
    second = adapted(tmp_path / "second", content=weights[:-1] + b"\1")
    published(drafts, second)
    code, said = drafts("rollback", "kitchen", "--json")
    told = json.loads(said)
    assert code == 0 and told["serial"] == 3 and told["files"] == first["files"] and told["name"] == "first"
    code, said = drafts("rollback", "kitchen", "--json")  # forth again
    assert json.loads(said)["serial"] == 4 and json.loads(said)["name"] == "second"
    code, said = drafts("rollback", "kitchen", "--to", "1", "--json")
    assert json.loads(said)["name"] == "first"
    for words in (("kitchen", "--to", "77"), ("garage",)):
        assert drafts("rollback", *words)[0] == 3


def test_a_rollback_to_nothing(tmp_path):
    store = store_with(tmp_path / "store", manifest(1), manifest(2))
    with pytest.raises(OpenSledError, match="no such earlier draft"):
        roll_back(store, KEY, "kitchen")


def test_the_store_keeps_some_and_files_that_are_named(tmp_path):
    store = store_with(tmp_path / "store")
    for serial in range(1, KEPT + 4):
        store_with(tmp_path / "store", manifest(serial), content=WEIGHTS + bytes((serial,)))
    assert [each.draft.serial for each in store.history("kitchen")] == list(range(4, KEPT + 4))
    assert len(list((tmp_path / "store/files").iterdir())) == KEPT


def test_nobody_else_reads_the_store(tmp_path):
    store = store_with(tmp_path / "store", manifest())
    assert all(
        stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        for path in store.folder.rglob("*")
        if path.name[0] != "."
    )
    store.folder.chmod(0o755)
    with pytest.raises(UsageError, match="chmod 700"):
        serve(ServeConfig(drafts=str(store.folder), listen="127.0.0.1:0"))
    with pytest.raises(UsageError, match="drafts publish"):
        serve(ServeConfig(drafts=str(tmp_path / "none")))


def test_a_damaged_manifest_is_named(tmp_path):
    store = store_with(tmp_path / "store", manifest())
    [path] = store.folder.glob("tenants/*/*.signed")
    path.write_bytes(b"x" * 100)
    with pytest.raises(OpenSledError, match="is damaged"):
        store.newest("kitchen")


def test_one_command_writes_at_a_time(tmp_path, drafts):
    store = store_with(tmp_path / "store", manifest())
    with store.writing():
        code, said = drafts("delete", "kitchen", signs=False)
    assert code == 1 and "another opensled drafts writes" in said


def test_keys(tmp_path, drafts, capsys):
    path = tmp_path / "new.key"
    assert cli.main(["drafts", "keygen", "--sign-key", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["public"]) == 64 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cli.main(["drafts", "keygen", "--sign-key", str(path)]) == 2
    assert "not overwritten" in capsys.readouterr().err
    folder = adapted(tmp_path / "mine")
    words = ["drafts", "publish", str(folder), "--store", str(tmp_path / "store"), "--tenant", "kitchen"]
    assert cli.main(words) == 2 and "keygen" in capsys.readouterr().err
    path.chmod(0o644)
    assert cli.main([*words, "--sign-key", str(path)]) == 2 and "chmod 600" in capsys.readouterr().err
    assert KITCHEN.key != told["public"]


# -- signed manifests ---------------------------------------------------------------------------------------------


def test_what_is_signed_is_read_as_it_was():
    draft = manifest(7)
    assert KITCHEN.verify(signed(draft)) == draft
    assert draft.gain == "acceptance 0.24 -> 0.93 at T = 0, 0.20 -> 0.89 at T = 0.8"
    assert "passed no gate" in manifest(passed=False, before=(), after=()).title()


def test_only_the_key_of_the_signer_counts():
    draft = signed(manifest())
    for wrong in (
        signed(manifest(), STRANGER),
        Signed(draft.manifest.replace(b"mine", b"fine"), draft.signature),
        Signed(draft.manifest, bytes(64)),
        Signed(draft.manifest, KEY._key.sign(draft.manifest)),  # for another purpose
        Signed(b"", draft.signature),
    ):
        with pytest.raises(DraftRefused, match="not signed by the key"):
            KITCHEN.verify(wrong)


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(manifest().encode()), **fields}).encode()


def file(**fields: object) -> dict[str, object]:
    return {"name": "a.gguf", "bytes": 5, "sha256": "a" * 64, **fields}


NAMES = (
    "../a.gguf", "/etc/a.gguf", "..", ".gguf", "a/b.gguf", "a\\b.gguf", "a.gguf\0", "a.gguf\n", "C:a.gguf", "a.py",
    "manifest.sig", "x" * 125 + ".gguf", "", "-a.gguf", "ä.gguf",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_could_be_paths_are_refused(name):
    with pytest.raises(DraftRefused, match="not a file name"):
        read_manifest(changed(files=[file(name=name)]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b'{"format": NaN}', "not of format"),
        (b"[]", "format"),
        (changed(format=2), "format"),
        (b" " * (MAX_MANIFEST + 1), "at most"),
        (changed(files=[]), "no GGUF file"),
        (changed(files=[file(name="genai_config.json")]), "no GGUF file"),
        (changed(files=[file(), file(name="A.gguf")]), "one name"),
        (changed(files=[file(name=f"{number}.gguf") for number in range(MAX_FILES + 1)]), "17 files"),
        (changed(files=[file(bytes=0)]), "bytes"),
        (changed(files=[file(bytes=True)]), "bytes"),
        (changed(files=[file(bytes=MAX_BYTES), file(name="b.gguf")]), "4 GiB"),
        (changed(files=[file(sha256="A" * 64)]), "sha256"),
        (changed(files=["a.gguf"]), "name"),
        (changed(serial=0), "serial"),
        (changed(serial=1.5), "serial"),
        (changed(serial=2**60), "serial"),
        (changed(tenant="a\nb"), "tenant"),
        (changed(tenant=""), "tenant"),
        (changed(name="x" * 300), "name"),
        (changed(fingerprint="x"), "fingerprint"),
        (changed(created=-1), "created"),
        (changed(passed=1), "passed"),
        (changed(after=[]), "other temperatures"),
        (changed(before=[{"temperature": 0, "acceptance": 2, "tokens_per_round": 1}]), "acceptance"),
    ],
)
def test_a_manifest_that_is_none_is_refused(content, said):
    with pytest.raises(DraftRefused, match=said):
        read_manifest(content)


def test_a_key_signs_nothing_that_no_device_would_take():
    with pytest.raises(DraftRefused):
        KEY.sign(manifest(files=(handed(name="../x.gguf"),)))


def test_a_signer_is_one_text():
    assert read_signer(f" {KITCHEN} \n") == KITCHEN
    assert read_signer(f"a:b:{KEY.public}").tenant == "a:b"
    for wrong in (
        "",
        "kitchen",
        f":{KEY.public}",
        "kitchen:abc",
        f"kitchen:{KEY.public.upper()}",
        "k\n:" + "a" * 64,
    ):
        with pytest.raises(UsageError, match="not a signer"):
            read_signer(wrong)


def test_a_key_is_read_again(tmp_path):
    assert SigningKey.read(KEY.pem, "file").public == KEY.public
    with pytest.raises(UsageError, match="no private key"):
        SigningKey.read(b"nothing", "file")


def test_requests_and_replies_within_their_limits():
    sha256 = handed().sha256
    asked = draft_codec.draft_request(sha256, 5).SerializeToString()
    assert draft_codec.read_draft_request(asked) == (sha256, 5)
    for wrong in (pb.GetDraftRequest(file="../x"), pb.GetDraftRequest(offset=3)):
        with pytest.raises(InvalidRequest):
            draft_codec.read_draft_request(wrong.SerializeToString())
    draft = signed(manifest())
    read = draft_codec.decode_draft_reply
    assert read(pb.GetDraftReply.FromString(draft_codec.manifest_bytes(*draft))) == draft
    assert read(pb.GetDraftReply.FromString(draft_codec.part_bytes(b"abc"))) == b"abc"
    for wrong in (
        pb.GetDraftReply(),
        pb.GetDraftReply(part=b""),
        pb.GetDraftReply(part=bytes(draft_codec.PART_BYTES + 1)),
        pb.GetDraftReply(manifest=pb.SignedManifest(manifest=draft.manifest, signature=b"short")),
        pb.GetDraftReply(manifest=pb.SignedManifest(manifest=bytes(20_000), signature=bytes(64))),
    ):
        with pytest.raises(ProtocolError):
            read(wrong)
    failure = draft_codec.failure_bytes(Failure.of(NotFound("none here", "draft")))
    with pytest.raises(NotFound, match="none here"):
        read(pb.GetDraftReply.FromString(failure))
