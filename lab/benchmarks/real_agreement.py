"""How often each drafter agrees with the real target: share of the positions of the target's own texts.

    python -m lab.benchmarks.real_agreement [--target smollm2] [--again] [--out FOLDER]

Adds `agreement` to the units of real_prompts.json. Each text of the target is given to the drafter token by token
(teacher forcing). At every place the drafter proposes one token, with the noise that the target's token was drawn with;
they agree if it is the same. A place without a proposal does not agree. The draft model reads the whole text, whatever
draft-window a device would have.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter, DrafterOptions
from lab.benchmarks.program import FOLDER, add_quick_and_out, exit_code, folder_of, parser_of, say
from lab.benchmarks.readme import write_readme
from lab.benchmarks.real_contenders import CONTENDERS, SAMPLINGS, add_models, available, draft_models
from lab.benchmarks.real_document import read_measured, write
from lab.benchmarks.real_texts import prompts
from lab.testbed.provenance import SEED
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from opensled.models.store import model_file
from verify_server.text.gguf_text import GgufText

COMPARED = ("tables", "lookup", "distilled", "4-bit self", "chain")
PIECE = 512  # tokens
WHOLE = DrafterOptions(window=8192)


def main(words: list[str] | None = None) -> int:
    parser = parser_of("real_agreement", __doc__)
    add_models(parser)
    parser.add_argument("--again", action="store_true", help="also for drafters that were compared before")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


def _measure(arguments: Namespace) -> int:
    out = folder_of(arguments) or FOLDER
    path = out / "real_prompts.json"
    raw = read_measured(path)
    drafts = draft_models(arguments.target, {"distilled": arguments.distilled})
    text = GgufText(model_file(arguments.target, "*.gguf"))
    for name in available(COMPARED, drafts):
        lacking = [unit for unit in raw["units"] if arguments.again or name not in unit.get("agreement", {})]
        if lacking:
            say(f"{name}: {len(lacking)} texts")
            _fill(lacking, name, drafts, text)
            write(path, raw)
    print(f"written: {path} and {write_readme(out)}")
    return 0


def _fill(units: Sequence[dict[str, Any]], name: str, drafts: Mapping[str, Path], text: GgufText) -> None:
    """Add what `name` agrees to; a text whose tokens are not known from its letters counts no position."""
    contender = CONTENDERS[name]
    kind = contender.words[contender.words.index("--drafter") + 1]
    model = str(drafts[contender.draft]) if contender.draft else ""
    drafter = DRAFTERS.get(kind)(model, 1, WHOLE).create()
    for unit in units:
        prompt = text.render([ChatMessage("user", prompts(unit["kind"])[unit["number"]].text)])
        written = written_ids(text.encode(unit["text"]), unit["answers"]["none"]["tokens"])
        params = SamplingParams(SAMPLINGS[unit["sampling"]]["temperature"], seed=SEED + unit["number"])
        sampler = Sampler(params, noise_key(SEED + unit["number"]), vocab_size=text.vocab_size)
        unit.setdefault("agreement", {})[name] = [agreed(drafter, prompt, written, sampler), len(written)]
    drafter.close()


def written_ids(ids: Sequence[int], tokens: int) -> Sequence[int]:
    """`ids` of a text's letters, if the target wrote as many `tokens`, or one more that ended it; else none."""
    return ids if tokens - len(ids) in (0, 1) else ()


def agreed(drafter: Drafter, prompt: Sequence[int], text: Sequence[int], sampler: Sampler) -> int:
    """At how many places of `text` the drafter proposes the token that stands there."""
    drafter.begin(prompt, sampler)
    while drafter.read(PIECE):  # what it has not read it does not draft for
        pass
    count = 0
    for token in text:
        proposed = next(drafter.propose(), None)
        count += proposed is not None and proposed.id == token
        drafter.commit([token])
    return count


if __name__ == "__main__":
    sys.exit(main())
