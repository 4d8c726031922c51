"""The doctor on a draft head of the target: whether its folder is one, and whether it is the target's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edge_client.checks.finding import Finding, fail, failed, ok
from opensled.drafting.head_form import read_about
from opensled.errors import OpenSledError, UsageError, VocabularyMismatch

CHECK = "draft head"
EXPORT = "opensled export-head --target TARGET --out FOLDER, beside a copy of the target"


def check_head(folder: str, target: Mapping[str, object] | None) -> Finding:
    """`target`: facts of it, None = no server has answered."""
    if not folder:
        return fail(CHECK, "--drafter head needs --draft-model FOLDER", EXPORT, UsageError)
    try:
        about = read_about(Path(folder))
    except OpenSledError as error:
        return failed(CHECK, error, EXPORT)
    if target is not None and target["fingerprint"] != about.vocabulary:
        detail = f"{folder} is a head of {about.target}, whose vocabulary is not that of {target['model_id']}"
        return fail(CHECK, detail, EXPORT, VocabularyMismatch)
    rows = len(about.taps) * (about.size + 4)
    often = "round" if about.by_steps else "token of the answer"
    return ok(
        CHECK,
        f"{about.kind} of {about.target}; the server must send it hidden states (serve --features), {rows:,} bytes for "
        f"each {often}",
    )
