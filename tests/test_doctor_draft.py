"""`opensled doctor` and the draft model: tried in a process of its own, whatever becomes of that."""

import asyncio

import pytest

from edge_client.checks import draft
from edge_client.checks.server import ServerReport
from edge_client.config import DoctorConfig
from opensled.errors import NotFound, VocabularyMismatch
from tests.tiny_drafts import tiny_info


def drafted(config, report=None):
    """Findings on the draft model, by check."""

    async def scenario():
        server = asyncio.get_running_loop().create_future()
        server.set_result(report or ServerReport())
        return await draft.check_draft(config, server)

    return {finding.check: finding for finding in asyncio.run(scenario())}


def test_a_draft_model_that_fits_its_server():
    findings = drafted(DoctorConfig(threads=1), ServerReport(info=tiny_info(), round_trip=0.01))
    assert list(findings) == ["draft model", "llama.cpp", "vocabulary", "draft speed", "draft length"]
    assert {item.status for name, item in findings.items() if name != "llama.cpp"} == {"ok"}


def test_a_foreign_vocabulary():
    report = ServerReport(info=tiny_info(fingerprint="0" * 64))
    finding = drafted(DoctorConfig(drafter="onnx", threads=1), report)["vocabulary"]
    assert finding.status == "fail" and finding.exit_code == VocabularyMismatch.exit_code


def test_draft_models_that_are_none(tmp_path):
    finding = drafted(DoctorConfig(draft_model="none such"))["draft model"]
    assert finding.exit_code == NotFound.exit_code and finding.fix == "opensled models list"
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(50))
    finding = drafted(DoctorConfig(draft_model=str(tmp_path / "bad.gguf")))["draft model"]
    assert finding.status == "fail" and "cannot load" in finding.detail
    assert drafted(DoctorConfig(drafter="lookup"))["draft model"].status == "ok"


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


def test_how_llamacpp_was_built():
    slow = {"features": "CPU : SSE3 = 1 | AVX2 = 0 | ", "gpu": False}
    assert "AVX2" in draft.check_build(slow, {"avx2", "sse3"}, has_cuda=False).detail
    assert "DOTPROD" in draft.check_build(slow, {"asimddp"}, has_cuda=False).detail
    assert "GGML_CUDA=on" in draft.check_build(slow, set(), has_cuda=True).fix
    fine = draft.check_build({"features": "CPU : AVX2 = 1 | ", "gpu": True}, {"avx2"}, has_cuda=True)
    assert (fine.status, fine.detail) == ("ok", "AVX2; uses a GPU")


def test_draft_speed():
    assert draft.check_speed({4: 0.02}, 4)[0].status == "ok"
    assert draft.check_speed({4: 0.5}, 4)[0].status == "warn"
    assert draft.check_speed({4: 0.5, 1: 0.02}, 4)[0].fix == "--threads 1"
    assert draft.check_speed({}, 4) == []


@pytest.mark.parametrize(
    ("draft_seconds", "round_trip", "status", "said"),
    [
        (0.02, 0.05, "ok", "at most 21 tokens/s"),
        (0.001, 0.1, "ok", "the link is most of a round"),
        (0.05, 0.001, "ok", "shorter blocks"),
        (0.02, 2.0, "warn", "at most 1 tokens/s"),
    ],
)
def test_what_the_distance_means_for_the_draft_length(draft_seconds, round_trip, status, said):
    finding = draft.check_plan(4, draft_seconds, round_trip)
    assert finding.status == status and said in finding.detail
