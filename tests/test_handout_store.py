"""The operator's side: what may be published, serials that only grow, rollback, deletion; `opensled drafts`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from adapt.handout.draft_store import KEPT, DraftStore
from adapt.handout.publisher import roll_back
from adapt.shelf.signature import Signed, read_signer
from opensled.cli import main as cli
from opensled.core.errors import OpenSledError, UsageError
from tests.handed_out import GGUF, KEY, KITCHEN, WEIGHTS, adapted, manifest, store_with
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
    failed = adapted(tmp_path / "failed", passes=False)
    for path in (bare, failed):
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
