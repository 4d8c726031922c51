"""Which drafter a device has for which target, and what it says where no draft model fits."""

from dataclasses import replace
from functools import cache

import pytest

from edge_client.device.config import DeviceConfig, DoctorConfig
from edge_client.device.drafter_choice import FittingFactory
from edge_client.device.known_drafts import choose_drafter
from opensled.core.errors import NotFound, UsageError, VocabularyMismatch
from opensled.core.messages import ModelInfo
from opensled.core.vocabulary import fingerprint
from opensled.process.registry import Registry
from tests.five_tokenizers import family
from tests.tiny_drafts import tiny_info, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("plain_logs")
WITHOUT = "lookup"
OTHER = tiny_info(model_id="smollm2", fingerprint="another", vocab_size=49_152)


@cache
def strange() -> ModelInfo:
    """A target with the vocabulary of `family("gpt2")`."""
    pieces = family("gpt2").pieces
    return tiny_info(model_id="strange", fingerprint=fingerprint(pieces), vocab_size=len(pieces))


def chosen(target=OTHER, tokenizer=None, **options) -> str:
    """The drafter that a device with these options has for `target`."""
    factory = FittingFactory(DeviceConfig(threads=1, **options))
    factory.fit(target, tokenizer)
    factory.create().close()
    return factory.name


@pytest.mark.parametrize("target", ["tiny", "tiny-hub"])
def test_a_target_with_a_known_draft_has_it(target, capsys):
    assert (
        chosen(tiny_info(model_id=target))
        == "chain lookup, cacheback tiny-draft.table, llamacpp tiny-draft-q8_0.gguf"
    )
    assert chosen(tiny_info(), drafter="llamacpp") == "llamacpp tiny-draft-q8_0.gguf"
    assert not capsys.readouterr().err


@pytest.mark.parametrize("drafter", ["auto", "llamacpp", "onnx", "accelerated:llamacpp"])
def test_without_a_draft_model_tables_and_lookup_draft(drafter, capsys):
    assert chosen(drafter=drafter) == WITHOUT
    note = "no draft model for 'smollm2' is here (opensled pull smollm2 fetches one); drafting with lookup; "
    assert capsys.readouterr().err.startswith(f"note: {note}better: --draft-model FILE")
    assert chosen(tiny_info(model_id="stranger"), drafter=drafter) == WITHOUT
    assert capsys.readouterr().err.startswith("note: no draft model for 'stranger' is known; drafting")


@pytest.mark.parametrize("drafter", ["auto", "llamacpp", "chain:cacheback,onnx", "accelerated:llamacpp"])
def test_with_the_model_of_another_vocabulary_as_well(drafter, capsys):
    assert chosen(drafter=drafter, draft_model="tiny-draft") == WITHOUT
    (note,) = capsys.readouterr().err.splitlines()
    assert "vocabulary" in note and note.count("--draft-model FILE") == 1 and "drafting with lookup" in note


@pytest.mark.parametrize("drafter", ["auto", "llamacpp", "onnx", "chain:cacheback,onnx"])
def test_a_named_model_of_another_vocabulary_drafts_by_text(drafter, capsys):
    assert "tiny-draft" in chosen(strange(), family("gpt2"), drafter=drafter, draft_model="tiny-draft")
    (note,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note")]
    assert note.startswith("note: the draft model has another vocabulary than 'strange': ")
    assert "tiny-draft" in note and note.endswith(" drafts by text")
    assert (
        chosen(strange(), family("gpt2"), drafter="accelerated:llamacpp", draft_model="tiny-draft") == WITHOUT
    )
    assert "accelerated drafts need the target's ids" in capsys.readouterr().err


def test_a_model_that_nobody_named_drafts_by_ids_only(capsys):
    assert chosen(replace(strange(), model_id="tiny"), family("gpt2")) == WITHOUT
    assert "has another vocabulary than 'tiny'; drafting with lookup" in capsys.readouterr().err


def test_that_drafts_go_by_text_is_said_once(capsys):
    factory = FittingFactory(DeviceConfig(threads=1, drafter="llamacpp", draft_model="tiny-draft"))
    for target, tokenizer in ((strange(), family("gpt2")), (tiny_info(), tiny_tokenizer())) * 2:
        factory.fit(target, tokenizer)
        assert factory.vocabulary.kind == ("text" if target.model_id == "strange" else "same")
    assert capsys.readouterr().err.count("drafts by text") == 1


@pytest.mark.parametrize("drafter", ["none", "lookup", "cacheback"])
def test_drafters_without_a_model_need_none(drafter, capsys):
    assert chosen(drafter=drafter, draft_table="off") == drafter
    assert not capsys.readouterr().err


def test_with_a_table_the_tables_draft_as_well(tmp_path):
    assert chosen(personal_table=str(tmp_path / "mine.table")) == "chain cacheback, lookup"


def test_a_missing_library_is_no_error_unless_it_was_asked_for(monkeypatch, capsys):
    def absent(self, name):
        raise UsageError(
            f"drafter {name!r} cannot be loaded: No module named 'llama_cpp'; run: pip install it"
        )

    get = Registry.get
    monkeypatch.setattr(
        Registry, "get", lambda self, name: (absent if "llamacpp" in name else get)(self, name)
    )
    assert chosen(tiny_info()) == WITHOUT
    assert "No module named 'llama_cpp'; run: pip install it; drafting with lookup" in capsys.readouterr().err
    with pytest.raises(UsageError, match="llama_cpp"):
        chosen(tiny_info(), drafter="llamacpp")
    with pytest.raises(UsageError, match="llama_cpp"):
        chosen(tiny_info(), draft_model="tiny-draft")


def test_files_that_were_named_and_cannot_be_used_are_errors(tmp_path):
    with pytest.raises(NotFound, match="nothing"):
        chosen(draft_model="nothing")
    with pytest.raises(NotFound, match=r"none\.table"):
        chosen(draft_table=str(tmp_path / "none.table"))


def test_a_named_table_of_another_vocabulary_is_an_error(tmp_path):
    from opensled.models.store import model_file

    table = str(model_file("tiny-draft", "*.table"))
    with pytest.raises(VocabularyMismatch, match="another vocabulary"):
        chosen(drafter="cacheback", draft_table=table)


def test_a_draft_model_is_loaded_once_for_targets_that_it_fits():
    """Its weights take seconds, in which the device would serve nobody."""
    factory = FittingFactory(DeviceConfig(threads=1))
    factory.fit(tiny_info())
    loaded = factory._fitting
    factory.fit(tiny_info(eos_ids=(0, 1)))
    assert factory._fitting is loaded


def test_a_draft_model_comes_back_with_a_target_that_it_fits():
    factory = FittingFactory(DeviceConfig(threads=1, draft_model="tiny-draft"))
    fitting = (tiny_info(), "chain lookup, cacheback tiny-draft.table, llamacpp tiny-draft-q8_0.gguf")
    for target, name in (fitting, (OTHER, WITHOUT), fitting):
        factory.fit(target)
        assert factory.name == name


def test_what_the_doctor_examines():
    assert choose_drafter(DoctorConfig(), "tiny") == DoctorConfig(
        drafter="chain:lookup,cacheback,llamacpp", draft_model="tiny-draft"
    )
    assert choose_drafter(DoctorConfig(), "stranger") == DoctorConfig(drafter="lookup")
    assert choose_drafter(DoctorConfig(drafter="none", draft_model="x"), "tiny").draft_model == "x"
    assert choose_drafter(DoctorConfig(), "smollm2").draft_model == ""
