"""`opensled doctor` and the draft model: tried in a process of its own, whatever becomes of that."""

import asyncio
import signal
from pathlib import Path

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.device.known_drafts import choose_drafter
from edge_client.doctor import draft
from edge_client.doctor.draft import REBUILD
from edge_client.doctor.own_process import run_module
from opensled.core.errors import NotFound
from opensled.models.llama_api import BUILT, PREBUILT
from opensled.process import distribution
from tests.absent import without

ROOT = Path(__file__).resolve().parents[1]


def drafted(config, **options):
    """The findings, by check."""
    found = asyncio.run(draft.check_draft(choose_drafter(config, "tiny"), **options))
    return {finding.check: finding for finding in found}


def test_a_draft_model_that_loads():
    findings = drafted(DoctorConfig(threads=1))
    assert list(findings) == ["draft model", "llama.cpp", "draft speed"]
    assert {item.status for name, item in findings.items() if name != "llama.cpp"} == {"ok"}


def test_draft_models_that_are_none(tmp_path):
    finding = drafted(DoctorConfig(draft_model="none such"))["draft model"]
    assert finding.exit_code == NotFound.exit_code and "opensled models list" in finding.fix
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(50))
    finding = drafted(DoctorConfig(draft_model=str(tmp_path / "bad.gguf")))["draft model"]
    assert finding.status == "fail" and "cannot load" in finding.detail
    assert drafted(DoctorConfig(drafter="lookup"))["draft model"].status == "ok"


def test_a_target_without_a_draft_model_is_left_to_the_device():
    config = choose_drafter(DoctorConfig(drafter="llamacpp"), "stranger")
    assert asyncio.run(draft.check_draft(config)) == []


@pytest.mark.parametrize(("stands_in", "status"), [(True, "warn"), (False, "fail")])
def test_a_library_that_is_missing_fails_where_it_was_asked_for(tmp_path, monkeypatch, stands_in, status):
    monkeypatch.setenv("PYTHONPATH", without(tmp_path, BUILT, PREBUILT)["PYTHONPATH"])
    finding = drafted(DoctorConfig(threads=1), stands_in=stands_in)["draft model"]
    assert finding.status == status and "cannot be loaded" in finding.detail
    assert finding.fix.startswith(distribution.command("llamacpp"))
    assert bool(finding.exit_code) == (status == "fail")


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
    (finding,) = draft.report_steps(steps, 0, "")
    assert finding.fix == "install libgomp1, OpenMP's library"


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
        (BUILT, "llamacpp", "llama_cpp==7: built for another processor", REBUILD),
        (PREBUILT, "llamacpp", "xllamacpp==7: built for another processor", "[llamacpp]"),
        ("onnxruntime", "onnx", "onnxruntime==7: built for another processor", "--drafter llamacpp"),
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
    monkeypatch.setattr(draft.metadata, "version", lambda name: "7")
    finding = draft.report_crash(library, -signal.SIGSEGV, "")
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
    assert draft.check_speed(0.02)[0].status == "ok"
    assert draft.check_speed(0.5)[0].status == "warn"
    assert draft.check_speed(None) == []


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


@pytest.mark.timed
def test_a_process_that_is_late_has_told_what_it_told_so_far(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text(
        "import sys, threading; from edge_client.doctor.own_process import tell;"
        "print('note: by text', file=sys.stderr, flush=True); tell('drafter', words='it'); threading.Event().wait()"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    steps, code, said = asyncio.run(run_module("late", seconds=8.0))
    assert steps == [{"step": "drafter", "words": "it"}] and code == -signal.SIGKILL
    assert said == ["note: by text", "no end within 8 s"]
