"""`opensled doctor` and the draft model: tried in a process of its own, whatever becomes of that."""

import asyncio
import signal
from dataclasses import replace

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.device.known_drafts import choose_drafter
from edge_client.doctor import crash, draft
from edge_client.doctor.crash import REBUILD
from edge_client.doctor.server_checks import ServerReport
from opensled.core.errors import NotFound, VocabularyMismatch
from opensled.core.vocabulary import fingerprint
from opensled.models.llama_api import BUILT, PREBUILT
from opensled.process import distribution
from tests.absent import without
from tests.five_tokenizers import family, tokenizer_json
from tests.tiny_drafts import tiny_info


def tried(config, report=None):
    """What is known of the draft model in the end."""

    async def scenario():
        server = asyncio.get_running_loop().create_future()
        server.set_result(report or ServerReport())
        return await draft.check_draft(choose_drafter(config, "tiny"), server)

    return asyncio.run(scenario())


def drafted(config, report=None):
    """The findings, by check."""
    return {finding.check: finding for finding in tried(config, report)}


def test_a_draft_model_that_fits_its_server():
    findings = drafted(DoctorConfig(threads=1), ServerReport(info=tiny_info()))
    assert list(findings) == ["draft model", "llama.cpp", "vocabulary", "draft speed"]
    assert {item.status for name, item in findings.items() if name != "llama.cpp"} == {"ok"}


def test_a_foreign_vocabulary():
    report = ServerReport(info=tiny_info(fingerprint="0" * 64))
    found = tried(DoctorConfig(drafter="onnx", threads=1), report)
    finding = next(each for each in found if each.check == "vocabulary")
    assert finding.status == "fail" and finding.exit_code == VocabularyMismatch.exit_code


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("gpt2", "warn", "drafts go by text"), ("tiny", "ok", "draft and target share it")],
)
def test_a_vocabulary_beside_the_targets(name, status, said):
    tokenizer = family(name)
    info = tiny_info(fingerprint=fingerprint(tokenizer.pieces), vocab_size=len(tokenizer.pieces))
    report = ServerReport(info=info, tokenizer_json=tokenizer_json(name).decode())
    found = tried(DoctorConfig(drafter="llamacpp", draft_model="tiny-draft", threads=1), report)
    finding = next(each for each in found if each.check == "vocabulary")
    assert finding.status == status and said in finding.detail
    assert not any(each.status == "fail" for each in found)


def test_draft_models_that_are_none(tmp_path):
    finding = drafted(DoctorConfig(draft_model="none such"))["draft model"]
    assert finding.exit_code == NotFound.exit_code and finding.fix == "opensled models list"
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(50))
    finding = drafted(DoctorConfig(draft_model=str(tmp_path / "bad.gguf")))["draft model"]
    assert finding.status == "fail" and "cannot load" in finding.detail
    assert drafted(DoctorConfig(drafter="lookup"))["draft model"].status == "ok"


def test_a_target_without_a_draft_model():
    config = choose_drafter(DoctorConfig(), "stranger")
    problem = draft._missing(config)
    assert problem and problem.status == "warn" and "lookup drafts" in problem.detail
    assert draft._missing(replace(config, drafter="llamacpp")) == problem


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Illegal", "illegal instruction"),
        ("Killed", "memory"),
        ("Endless", "no end within 1 s"),
        ("Buggy", "libgomp.so.1"),
    ],
)
def test_a_runtime_that_takes_its_process_along(name, said, monkeypatch):
    monkeypatch.setattr(draft, "LOAD_SECONDS", 1.0 if name == "Endless" else 20.0)
    finding = drafted(DoctorConfig(drafter=f"tests.broken_drafters:{name}"))["draft model"]
    assert finding.status == "fail" and said in finding.detail and finding.fix


def test_openmp_that_is_missing_is_named_as_its_package():
    reason = "xllamacpp: libgomp.so.1: no such file; install libgomp1, OpenMP's library"
    steps = [{"step": "error", "code": "unsupported_model", "reason": reason}]
    (finding,) = draft._findings(DoctorConfig(), steps, 0, "")
    assert finding.fix == "sudo apt-get install libgomp1"


ENDS = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
ENDS_AT_LOAD = f"""
import ctypes
class CDLL(ctypes.CDLL):
    def __init__(self, name, *arguments, **options):
        if "xllamacpp" in str(name):
            {ENDS}
        super().__init__(name, *arguments, **options)
ctypes.CDLL = CDLL
"""


@pytest.fixture
def fatal(tmp_path, monkeypatch):
    """Gives a doctor's process a library, version 7, whose first instructions the processor does not know."""

    def install(library: str) -> None:
        monkeypatch.setenv("PYTHONPATH", without(tmp_path, BUILT)["PYTHONPATH"])
        if library != PREBUILT:
            (tmp_path / "sitecustomize.py").unlink()
            (tmp_path / f"{library}.py").write_text(ENDS)
        else:
            (tmp_path / PREBUILT).mkdir()
            (tmp_path / PREBUILT / "__init__.py").touch()
            (tmp_path / PREBUILT / "xllamacpp.abi3.so").touch()
            with (tmp_path / "sitecustomize.py").open("a") as file:
                file.write(ENDS_AT_LOAD)
        notes = tmp_path / f"{library}-7.dist-info"
        notes.mkdir()
        (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: 7\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


@pytest.mark.parametrize(
    ("library", "drafter", "said", "fix"),
    [
        (BUILT, "llamacpp", "llama.cpp was built for another processor", REBUILD),
        (PREBUILT, "llamacpp", "the llama.cpp in xllamacpp 7 was built for newer", "[llamacpp]"),
        ("onnxruntime", "onnx", "onnxruntime 7 was built for newer processors", "--drafter llamacpp"),
    ],
)
def test_a_library_that_was_built_for_another_processor(fatal, library, drafter, said, fix):
    fatal(library)
    finding = drafted(DoctorConfig(drafter=drafter, draft_model="tiny-draft", threads=1))["draft model"]
    assert (
        finding.status == "fail"
        and said in finding.detail
        and finding.detail.endswith(": illegal instruction")
        and fix in finding.fix
    )


def test_the_release_of_onnx_runtime_that_a_pi_4_cannot_run(monkeypatch):
    monkeypatch.setattr(crash, "version_of", lambda name: crash.TOO_NEW_FOR_A_PI_4)
    finding = crash.report_crash("onnxruntime", -signal.SIGILL, "")
    assert "onnxruntime 1.21.0" in finding.detail and finding.fix.endswith(distribution.command("onnx"))


@pytest.mark.parametrize(
    ("library", "again"),
    [
        (BUILT, REBUILD),
        (PREBUILT, "--no-deps xllamacpp=="),
        ("onnxruntime", "--no-deps onnxruntime=="),
        ("", "the libraries that this drafter uses"),
    ],
)
def test_another_end_of_the_process_asks_for_the_same_version_again(library, again, monkeypatch):
    monkeypatch.setattr(crash, "version_of", lambda name: "7")
    finding = crash.report_crash(library, -signal.SIGSEGV, "")
    assert "SIGSEGV" in finding.detail and again in finding.fix
    assert finding.fix.endswith("==7") == (library in (PREBUILT, "onnxruntime"))


def test_how_llamacpp_was_built():
    slow = {"features": "CPU : SSE3 = 1 | AVX2 = 0 | ", "gpu": False}
    assert "AVX2" in draft.check_build(BUILT, slow, {"avx2", "sse3"}, has_cuda=False).detail
    assert "DOTPROD" in draft.check_build(BUILT, slow, {"asimddp"}, has_cuda=False).detail
    assert "GGML_CUDA=on" in draft.check_build(BUILT, slow, set(), has_cuda=True).fix
    fine = draft.check_build(BUILT, {"features": "CPU : AVX2 = 1 | ", "gpu": True}, {"avx2"}, has_cuda=True)
    assert (fine.status, fine.detail) == ("ok", "of llama_cpp: AVX2; uses a GPU")


def test_a_wheel_without_this_processors_instructions():
    """Its remedy is no rebuild of another package than the one that is here, but the one that is built here."""
    finding = draft.check_build(PREBUILT, {"features": "CPU : NEON = 1 | ", "gpu": False}, {"asimddp"}, False)
    assert finding.status == "warn" and "DOTPROD" in finding.detail
    assert finding.fix == f'CMAKE_ARGS="-DGGML_NATIVE=ON" {distribution.command("llamacpp")}'


def test_draft_speed():
    assert draft.check_speed({4: 0.02}, 4)[0].status == "ok"
    assert draft.check_speed({4: 0.5}, 4)[0].status == "warn"
    assert draft.check_speed({4: 0.5, 1: 0.02}, 4)[0].fix == "--threads 1"
    assert draft.check_speed({}, 4) == []


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ("chain:cacheback,llamacpp", "llamacpp tiny-draft"),
        ("cacheback", "needs none"),
        ("chain:lookup,cacheback", "needs none"),
        ("llamacp", "unknown drafter"),
    ],
)
def test_of_a_chain_the_model_is_tried(drafter, said):
    assert said in drafted(DoctorConfig(drafter=drafter, threads=1))["draft model"].detail
