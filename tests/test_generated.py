"""The committed gRPC code is what `make proto` makes of the schema."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib
from grpc_tools import protoc

from opensled.v1 import verify_pb2_grpc

ROOT = Path(__file__).resolve().parents[1]


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    arguments = [f"--proto_path={ROOT / 'proto'}"]
    arguments += [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    assert protoc.main(["protoc", *arguments, "opensled/v1/verify.proto"]) == 0
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "opensled/v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "opensled/v1").glob("verify_*")}
    assert committed == fresh, "run: make proto"


def test_metadata_asks_for_runtimes_new_enough() -> None:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    header = (ROOT / "opensled/v1/verify_pb2.py").read_text("utf-8")
    (protobuf,) = re.findall(r"^# Protobuf Python Version: (.*)$", header, re.MULTILINE)
    assert f"protobuf>={protobuf}" in needs
    assert f"grpcio>={verify_pb2_grpc.GRPC_GENERATED_VERSION}" in needs
