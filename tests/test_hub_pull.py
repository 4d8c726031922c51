"""`opensled pull ORG/REPO[:QUANT]` from a hub on localhost that speaks over real HTTP."""

import hashlib
import json
import re
import shutil

import pytest

from opensled.models import download, store
from opensled.models.hub import pin_file, read_pin
from tests import hub_server
from tests.hub_server import FETCHED, FOLDER, NAME, NEWEST, OLDER, Q4, Q8, complaint, files, folder, pull
from tests.hub_server import hub as hub

# Listings of mirrors


def _oid(entry, form, case=str):
    sha256 = entry.get("lfs", {}).get("sha256")
    return sha256 and {"sha256": None, "oid": case(form.format(sha256))}


LISTINGS = {  # what becomes of an entry
    "no sizes": lambda entry: {"rfilename": entry["rfilename"]},
    "sizes and digests of null": lambda entry: {**dict.fromkeys(entry), "rfilename": entry["rfilename"]},
    "sizes as text": lambda entry: {**entry, "size": str(entry["size"]), "lfs": None},
    "lfs that is no object": lambda entry: {**entry, "lfs": True},
    "as the tree of a repository": lambda entry: {
        "type": "file",
        "path": entry["rfilename"],
        "size": entry["size"],
        "oid": entry["blobId"],
    },
    "oids with their method": lambda entry: {**entry, "lfs": _oid(entry, "sha256:{}")},
    "digests in capitals": lambda entry: {**entry, "lfs": _oid(entry, "{}", str.upper)},
    "sizes with a point, names from here": lambda entry: {
        "path": f"./{entry['rfilename']}",
        "size": float(entry["size"]),
    },
    "more fields": lambda entry: {**entry, "xetHash": "0", "security": None, "lastCommit": {}},
}


@pytest.mark.parametrize("tells_length", [True, False])
@pytest.mark.parametrize("page", [0, 1, 3])
@pytest.mark.parametrize("kind", LISTINGS)
def test_a_listing_of_a_mirror(kind, page, tells_length, hub):
    """Also with a folder as an entry, and a connection that breaks."""
    for name, right in ((f"{NAME}:Q8_0", {"small-1b-q8_0.gguf": Q8}), ("org/plain", FOLDER)):
        listing = hub.listing(name.partition(":")[0], "")
        strays = [
            {"type": "dir", "path": "onnx"},
            {"rfilename": "a:b.txt"},
            {"rfilename": "a\\b.safetensors"},
        ]
        siblings = [
            None,
            {"type": "directory", "path": "onnx"},
            *strays,
            *map(LISTINGS[kind], listing["siblings"]),
        ]
        hub.repositories[name.partition(":")[0]].listing = {**listing, "siblings": siblings}
        hub.page, hub.tells_length, hub.knows_ranges = page, tells_length, page != 1
        hub.break_after = [1000, 2000] if tells_length else []
        assert pull(name) == 0
        found = files(name.partition(":")[0])
        assert found == {name: right[name] for name in found} and len(found) in (1, len(FETCHED))


def test_a_range_that_begins_elsewhere_is_not_joined(hub, monkeypatch):
    monkeypatch.setattr(hub_server, "SHIFT", 7)
    hub.repositories[NAME].listing = {
        **hub.listing(NAME, ""),
        "siblings": [{"rfilename": "small-1b-q8_0.gguf"}],
    }
    hub.break_after = [1000]
    assert pull(f"{NAME}:Q8_0") == 0 and files() == {"small-1b-q8_0.gguf": Q8}


@pytest.mark.parametrize("kind", ["oids with their method", "digests in capitals"])
def test_a_digest_counts_as_a_mirror_writes_it(kind, hub, capsys):
    listing = hub.listing(NAME, "")
    hub.repositories[NAME].served["small-1b-q8_0.gguf"] = Q8[::-1]
    hub.repositories[NAME].listing = {**listing, "siblings": [*map(LISTINGS[kind], listing["siblings"])]}
    assert pull(f"{NAME}:Q8_0") == 1 and "arrived damaged" in complaint(capsys)


@pytest.mark.parametrize("beside", ["consolidated", "model.fp16", "adapter_model", "flax"])
def test_a_whole_model_is_fetched_alone(beside, hub):
    hub.add("org/plain", {**FOLDER, f"{beside}.safetensors": b"others" * 99})
    assert pull("org/plain") == 0 and set(files("org/plain")) == set(FETCHED)


# GGUF files


def test_a_quantization_is_fetched_once_and_pinned(hub, capsys):
    assert pull(f"{NAME}:Q8_0") == 0
    shown = capsys.readouterr()
    assert shown.out == f"{NAME}:Q8_0 is ready: {folder()}/small-1b-q8_0.gguf\n"
    assert (
        f"fetching {NAME}:Q8_0 from {hub.address}: small-1b-q8_0.gguf, 0 MB, commit aaaaaaaaaaaa" in shown.err
    )
    assert "there are also" not in shown.err and f"next: opensled run {NAME}:Q8_0" in shown.err
    assert files() == {"small-1b-q8_0.gguf": Q8}
    pin = read_pin(NAME)
    assert pin.commit == OLDER and pin.files["small-1b-q8_0.gguf"].sha256 == hashlib.sha256(Q8).hexdigest()
    asked = len(hub.asked)
    assert pull(f"{NAME}:q8_0") == 0
    assert capsys.readouterr().out == f"{NAME}:q8_0 was here already: {folder()}/small-1b-q8_0.gguf\n"
    assert len(hub.asked) == asked  # it needs no network


def test_without_a_choice_one_line_says_what_was_taken_and_what_else_there_is(hub, capsys):
    assert pull(NAME) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"taking Q4_K_M; there are also Q8_0: opensled pull {NAME}:Q8_0\n")
    assert shown.out.startswith(f"{NAME}:Q4_K_M is ready") and files() == {"small-1b-q4_k_m.gguf": Q4}


@pytest.mark.parametrize("start", ["https://huggingface.co/", "hf.co/"])
def test_the_address_of_a_page_is_a_name(start, hub, capsys):
    assert pull(f"{start}{NAME}:Q8_0") == 0
    assert capsys.readouterr().out.startswith(f"{NAME}:Q8_0 is ready")


def test_the_answer_as_json(hub, capsys):
    assert pull(NAME, "--json") == 0
    path = str(folder() / "small-1b-q4_k_m.gguf")
    assert json.loads(capsys.readouterr().out) == {"name": f"{NAME}:Q4_K_M", "path": path, "fetched": True}


def test_a_split_model_is_fetched_whole(hub, capsys):
    parts = {f"q6/big-Q6_K-{n:05}-of-00003.gguf": b"GGUF%d" % n * 50 for n in (1, 2, 3)}
    hub.add("org/big", {**parts, "cut-Q8_0-00001-of-00002.gguf": b"GGUF" * 40})
    assert pull("org/big") == 0
    assert f"is ready: {folder('org/big')}/q6/big-Q6_K-00001-of-00003.gguf" in capsys.readouterr().out
    assert files("org/big") == parts
    assert pull("org/big:Q8_0") == 3 and "has no GGUF file Q8_0; it has Q6_K" in complaint(capsys)


def test_a_quantization_that_is_not_there(hub, capsys):
    assert pull(f"{NAME}:Q5_K_M") == 3
    assert f"{NAME} has no GGUF file Q5_K_M; it has Q4_K_M, Q8_0" in complaint(capsys)
    assert not folder().exists() and not pin_file(NAME).exists()


# Safetensors


def test_a_folder_of_safetensors_without_pickles_and_code(hub, capsys):
    assert pull("org/plain") == 0
    assert files("org/plain") == {name: FOLDER[name] for name in FETCHED}
    assert capsys.readouterr().out == f"org/plain is ready: {folder('org/plain')}\n"
    assert not any("pytorch_model" in path or "train.py" in path for path in hub.asked)


def test_only_the_weights_that_the_index_names(hub):
    weights = {f"model-0000{n}-of-00002.safetensors": b"part%d" % n * 40 for n in (1, 2)}
    index = {"weight_map": dict(zip("ab", weights))}
    hub.add("org/parts", {**FOLDER, **weights, "model.safetensors.index.json": json.dumps(index).encode()})
    assert pull("org/parts") == 0
    assert {name for name in files("org/parts") if name.endswith(".safetensors")} == set(weights)


@pytest.mark.parametrize(
    "weight_map", [{"a": "../../evil.safetensors"}, {"a": "gone.safetensors"}, {}, 3, {"a": []}]
)
def test_an_index_of_other_files_is_refused(weight_map, hub, capsys):
    index = json.dumps({"weight_map": weight_map}).encode()
    hub.add("org/parts", {**FOLDER, "model.safetensors.index.json": index})
    assert pull("org/parts") == 1
    assert "model.safetensors.index.json of the repository" in complaint(capsys)
    assert "model.safetensors" not in files("org/parts")


@pytest.mark.parametrize(
    ("weights", "config", "said"),
    [
        ("pytorch_model.bin", b"{}", "holds pickled weights, which can run code and are never opened"),
        ("onnx/model_q4.onnx", b"{}", "holds ONNX, which only drafts"),
        ("adapter_config.json", b"", "holds an adapter (LoRA), which changes another model"),
        ("model.safetensors", b'{"quantization": {"bits": 4}}', "is quantized for MLX on a Mac"),
        (
            "model.safetensors",
            b'{"architectures": 5, "is_encoder_decoder": 1}',
            "has an encoder beside its decoder",
        ),
        (
            "model.safetensors",
            b'{"architectures": {"a": 1}, "is_encoder_decoder": 1}',
            "has an encoder beside",
        ),
    ],
)
def test_a_repository_that_cannot_be_served_is_refused_before_its_weights(weights, config, said, hub, capsys):
    hub.add("org/old", {weights: b"weights" * 99, **({"config.json": config} if config else {})})
    assert pull("org/old") in (1, 3)
    assert f"org/old {said}" in complaint(capsys)
    assert not any(weights in path for path in hub.asked)


# Broken connections


def test_a_broken_connection_goes_on_by_ranges(hub, capsys):
    hub.break_after = [1000, 0, 500]
    assert pull(f"{NAME}:Q4_K_M") == 0
    assert files() == {"small-1b-q4_k_m.gguf": Q4}
    assert hub.ranges == ["bytes=1000-", "bytes=1000-", "bytes=1500-"]


def test_a_later_command_goes_on_where_an_earlier_one_stopped(hub, capsys):
    hub.break_after = [1000] + [0] * download.ATTEMPTS
    assert pull(f"{NAME}:Q4_K_M") == 5
    line = complaint(capsys)
    assert "broke off at 0 of 0 MB" in line and "run the same command again to continue" in line
    assert store.pulled_path(store.HubName(NAME)) is None and store.pulled_models() == []
    hub.add(NAME, {}, NEWEST)  # the interrupted pull goes on with its own commit
    hub.ranges.clear()
    assert pull(f"{NAME}:Q4_K_M") == 0
    assert files() == {"small-1b-q4_k_m.gguf": Q4} and hub.ranges == ["bytes=1000-"]


@pytest.mark.parametrize("more", [1, 0], ids=["too long", "other bytes"])
def test_a_part_that_is_not_of_this_file_does_not_stay(more, hub, capsys):
    hub.break_after = [1000] + [0] * download.ATTEMPTS
    assert pull(f"{NAME}:Q4_K_M") == 5
    [part] = folder().glob(".*.part")
    part.write_bytes(b"x" * (len(Q4) + more))
    assert more or pull(f"{NAME}:Q4_K_M") == 1  # it has the length of the whole file: its digest tells
    assert pull(f"{NAME}:Q4_K_M") == 0 and files() == {"small-1b-q4_k_m.gguf": Q4}


def test_a_hub_that_is_down_for_a_moment_in_mid_file(hub, capsys):
    hub.break_after, hub.down_after_break = [1000], 2
    assert pull(f"{NAME}:Q4_K_M") == 0 and hub.ranges == ["bytes=1000-"]


def test_a_hub_that_is_down(hub, capsys):
    hub.down = 1
    assert pull(f"{NAME}:Q8_0") == 5
    assert "answers 503" in complaint(capsys)


@pytest.mark.parametrize("change", [lambda content: content + b"more", lambda content: content[:-1] + b"!"])
def test_damaged_content_is_not_kept(change, hub, capsys):
    hub.repositories[NAME].served["small-1b-q4_k_m.gguf"] = change(Q4)
    assert pull(f"{NAME}:Q4_K_M") == 1
    assert re.search("arrived damaged|sends more of", complaint(capsys))
    hub.repositories[NAME].served.clear()
    assert pull(f"{NAME}:Q4_K_M") == 0 and files() == {"small-1b-q4_k_m.gguf": Q4}


def test_damaged_content_of_a_small_file_is_known_by_gits_id(hub, capsys):
    hub.repositories["org/plain"].served["config.json"] = b'{"model_type": "lxxxx"}'
    assert pull("org/plain") == 1
    assert "config.json arrived damaged" in complaint(capsys)


# Pins


def test_later_pulls_are_of_the_first_commit(hub, capsys):
    assert pull(f"{NAME}:Q4_K_M") == 0
    hub.add(NAME, {"small-1b-q8_0.gguf": b"GGUF" + b"new" * 99}, NEWEST)
    assert pull(f"{NAME}:Q8_0") == 0
    assert files()["small-1b-q8_0.gguf"] == Q8 and read_pin(NAME).commit == OLDER


def test_another_revision_replaces_what_differs(hub, capsys):
    assert pull(f"{NAME}:Q4_K_M") == 0 and pull(f"{NAME}:Q8_0") == 0
    changed = b"GGUF" + b"new" * 99
    hub.add(NAME, {"small-1b-q8_0.gguf": changed, "small-1b-q4_k_m.gguf": Q4}, NEWEST)
    assert pull(f"{NAME}:Q8_0", "--revision", "main") == 0
    assert files() == {"small-1b-q8_0.gguf": changed, "small-1b-q4_k_m.gguf": Q4}
    assert read_pin(NAME).commit == NEWEST and set(read_pin(NAME).files) == set(files())
    hub.add(NAME, {"small-1b-q8_0.gguf": Q8}, "c" * 40)
    assert pull(f"{NAME}:Q8_0", "--revision", "c" * 40) == 0
    assert files() == {"small-1b-q8_0.gguf": Q8}  # nothing of another commit stays
    assert "removed small-1b-q4_k_m.gguf, which is of commit bbbbbbbbbbbb" in capsys.readouterr().err


def test_a_revision_that_is_not_there(hub, capsys):
    assert pull(NAME, "--revision", "v9") == 3
    assert f"{NAME} has no revision 'v9'" in complaint(capsys)


def test_a_file_that_nobody_fetched_counts_for_nothing(hub):
    assert pull(f"{NAME}:Q4_K_M") == 0
    (folder() / "small-1b-q8_0.gguf").write_bytes(b"GGUF")
    assert pull(f"{NAME}:Q8_0") == 0
    assert files()["small-1b-q8_0.gguf"] == Q8


@pytest.mark.parametrize("announced", [True, False], ids=["by the listing", "by the bytes"])
def test_a_changed_digest_of_the_same_commit_is_an_error(announced, hub, capsys):
    assert pull("org/plain") == 0
    shutil.rmtree(folder("org/plain"))
    name = "model.safetensors" if announced else "config.json"
    hub.add("org/plain", {**FOLDER, name: FOLDER[name].replace(b"e", b"3")})
    capsys.readouterr()
    assert pull("org/plain") == 1
    line = complaint(capsys)
    assert re.search(
        rf"{name} of org/plain at commit {OLDER} has the sha256 .* at its first download it had", line
    )
    assert str(pin_file("org/plain")) in line and name not in files("org/plain")


def test_a_file_that_changed_on_this_disk_is_named(hub, capsys):
    assert pull(f"{NAME}:Q4_K_M") == 0
    (folder() / "small-1b-q4_k_m.gguf").write_bytes(Q8)
    capsys.readouterr()
    assert pull(f"{NAME}:Q4_K_M") == 1
    assert "small-1b-q4_k_m.gguf is not what was fetched" in complaint(capsys)
