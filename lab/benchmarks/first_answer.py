"""Twenty plain questions to SmolLM2 in each form of its one file: which answers stay those of float32, how fast, and in
how much memory.

    opensled pull smollm2
    python -m lab.benchmarks.first_answer [--threads 1] [--quick] [--out FOLDER]

Each form is a process of its own with the engine that serves it; they answer in turns. It writes first_answer.json, and
first_answer.md with the answers before (the file as it is stored) and after (as it is served).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.program import (
    SPAWN,
    add_quick_and_out,
    exit_code,
    folder_of,
    parser_of,
    say,
    spawned,
    table,
    write_json,
)
from lab.testbed.gguf_reference import GgufReference
from lab.testbed.provenance import provenance
from opensled.core.messages import SamplingParams
from opensled.models import llama
from opensled.models.store import model_file
from verify_server.engine.base import SampleRequest, Segment, TargetEngine
from verify_server.engine.torch import loading
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start import load_target

MODEL = "smollm2"
TOKENS = 24  # of an answer, at most
# Question -> what a right answer says; "" = there is no one right answer.
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "Hello": "",
    "What is 2 + 2?": "4",
    "Name three colours.": "",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "How many days are in a week?": "7",
    "What is the largest planet of our solar system?": "Jupiter",
    "Write one sentence about the sea.": "",
    "What is the opposite of hot?": "cold",
    "What do bees make?": "honey",
    "Name the first month of the year.": "January",
    "What is water made of?": "hydrogen",
    "Translate 'good morning' into Spanish.": "Buenos días",
    "What is the capital of Japan?": "Tokyo",
    "Say hello in one sentence.": "",
    "What colour is the sky on a clear day?": "blue",
    "How many legs does a spider have?": "eight",
    "What is the boiling point of water in degrees Celsius?": "100",
    "Give me a tip for sleeping well.": "",
    "What is a dog?": "animal",
}
STORED, SERVED = "Q4_1, as it is stored", "F16, widened"
# Form -> engine and dtype. The file of Q8_0 is made of the stored one for this run.
FORMS = {
    STORED: ("llamacpp", "stored"),
    "Q8_0": ("llamacpp", "stored"),
    SERVED: ("llamacpp", "auto"),
    "torch, bfloat16": ("torch", "bfloat16"),
    "torch, float32": ("torch", "float32"),
}


class Answer(NamedTuple):
    """What an engine wrote, greedily."""

    tokens: list[int]
    first_s: float  # until its first token
    rest_s: float


class Difference(NamedTuple):
    """The first token of an answer that is not float32's."""

    place: int
    gap: float  # in float32's logits, between its own token and that one


def ask(engine: TargetEngine, prompt: Sequence[int]) -> Answer:
    """Up to `TOKENS` tokens, each the likeliest one."""
    size = engine.info.block_size
    blocks = tuple(range(-(-(len(prompt) + TOKENS) // size)))
    text, answer, first_s, began = list(prompt), list[int](), 0.0, time.perf_counter()
    start = 0
    while len(answer) < TOKENS and not set(answer) & set(engine.info.eos_ids):
        scores = engine.forward([Segment(tuple(text[start:]), start, blocks, 1)])
        answer += scores.sample_one(SampleRequest([0], SamplingParams(temperature=0.0), b"", len(text)))
        start, text = len(text), [*prompt, *answer]
        first_s = first_s or time.perf_counter() - began
    engine.forget(blocks)
    return Answer(answer, first_s, time.perf_counter() - began - first_s)


def difference(reference: GgufReference, prompt: Sequence[int], answer: Sequence[int]) -> Difference | None:
    """Where an answer leaves what float32 writes; None = nowhere."""
    rows = reference.logits([*prompt, *answer[:-1]], len(answer))
    for place, (row, token) in enumerate(zip(rows, answer)):
        if row.argmax() != token:
            return Difference(place, float(row.max() - row[token]))
    return None


def is_right(question: str, text: str) -> bool:
    return QUESTIONS[question].lower() in text.lower()


@dataclass
class Form:
    """A form of the file in a process of its own."""

    ends: Connection
    about: dict[str, Any]
    answers: list[Answer] = field(default_factory=list)

    def ask(self, prompt: Sequence[int]) -> None:
        self.ends.send(list(prompt))
        self.answers.append(Answer(*self.ends.recv()))

    def memory(self) -> int:
        """Resident bytes of its process."""
        self.ends.send(None)
        return int(self.ends.recv())


def _serve(ends: Connection, config: ServeConfig) -> None:
    load: Callable[[ServeConfig], ServedModel] = {
        "llamacpp": load_target.load_llamacpp,
        "torch": load_target.load_torch,
    }[config.engine]
    engine = load(config).engine
    info = engine.info
    ends.send({"engine": info.runtime, "dtype": info.dtype, "numerics": info.numerics})
    while (prompt := ends.recv()) is not None:
        ends.send(tuple(ask(engine, prompt)))
    ends.send(_resident())


def _resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


@contextmanager
def _form(model: str, engine: str, dtype: str, threads: int) -> Iterator[Form]:
    ours, theirs = SPAWN.Pipe()
    config = ServeConfig(
        model=model, engine=engine, dtype=dtype, threads=threads, kv_tokens=1024, context=512
    )
    process = spawned(_serve, theirs, config)
    theirs.close()
    try:
        yield Form(ours, ours.recv())
    finally:
        ours.close()
        process.join(10)
        process.kill()


def measure(questions: Sequence[str], threads: int) -> dict[str, Any]:
    """All forms, in turns."""
    stored = model_file(MODEL, "*.gguf")
    loading.use_threads(threads)
    reference = GgufReference(stored)
    prompts = [reference.render_chat([{"role": "user", "content": text}]) for text in questions]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        llama.requantize(stored, folder / "q8_0.gguf", "Q8_0")
        models = dict.fromkeys(FORMS, MODEL) | {"Q8_0": str(folder / "q8_0.gguf")}
        forms = {name: stack.enter_context(_form(models[name], *how, threads)) for name, how in FORMS.items()}
        for question, prompt in zip(questions, prompts):
            say(question)
            for form in forms.values():
                form.ask(prompt)
        return {name: _found(form, reference, questions, prompts) for name, form in forms.items()}


def _found(
    form: Form, reference: GgufReference, questions: Sequence[str], prompts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    texts = [reference.decode(answer.tokens) for answer in form.answers]
    left = [difference(reference, prompt, answer.tokens) for prompt, answer in zip(prompts, form.answers)]
    rates = [(len(answer.tokens) - 1) / answer.rest_s for answer in form.answers if len(answer.tokens) > 1]
    return {
        **form.about,
        "as_in_float32": left.count(None),
        "right": sum(
            is_right(question, text) for question, text in zip(questions, texts) if QUESTIONS[question]
        ),
        "tokens_per_s": round(statistics.median(rates), 1),
        "first_token_s": round(statistics.median(answer.first_s for answer in form.answers), 3),
        "resident_mb": round(form.memory() / 1e6),
        "answers": texts,
        "differences": [
            {"question": question, "token": found.place + 1, "gap": round(found.gap, 3)}
            for question, found in zip(questions, left)
            if found
        ],
    }


def markdown(document: Mapping[str, Any]) -> str:
    """Both tables: forms, and answers before and after."""
    forms, questions = document["forms"], document["questions"]
    facts = sum(bool(QUESTIONS[question]) for question in questions)
    head = ("form", "engine", "as in float32", "facts right", "tokens/s", "first token, s", "memory, MB")
    rows = [
        [name, form["engine"], f"{form['as_in_float32']} of {len(questions)}", f"{form['right']} of {facts}"]
        + [str(form[key]) for key in ("tokens_per_s", "first_token_s", "resident_mb")]
        for name, form in forms.items()
    ]
    before, after = (map(_cell, forms[name]["answers"]) for name in (STORED, SERVED))
    origin, machine = document["provenance"], document["provenance"]["machine"]
    return "\n".join(
        [
            f"# {document['title']}\n",
            f"{document['compared']}\n",
            f"*Real*: {machine['cpu']}, {machine['cores']} cores, load {machine['load_average'][0]} at the start, "
            f"{document['threads']} thread(s) a form; llama.cpp of llama-cpp-python "
            f"{origin['libraries'].get('llama-cpp-python')}, torch {origin['libraries'].get('torch')}; "
            f"{origin['date'][:10]}, `{origin['command']}`.\n",
            *table(head, rows),
            "",
            *table(
                ("question", f"before: {STORED}", f"after: {SERVED}"), list(zip(questions, before, after))
            ),
            "",
        ]
    )


def _cell(text: str) -> str:
    return text.replace("<|im_end|>", "").strip().replace("\n", " ").replace("|", "\\|")


def run(arguments: Namespace) -> int:
    """Measure, write, and print the tables."""
    origin = provenance()
    questions = list(QUESTIONS)[: 2 if arguments.quick else None]
    document = {
        "title": "The first answers of SmolLM2, by the form of its file",
        "label": "real",
        "compared": (
            f"The first {TOKENS} tokens of each answer, greedy, with the model's own system turn, against those of "
            "plain transformers on the same weights in float32. Memory is all that is resident of the process that "
            "serves a form alone, libraries included; tokens/s is the median over the questions, after the first token."
        ),
        "threads": arguments.threads,
        "questions": questions,
        "forms": measure(questions, arguments.threads),
        "provenance": origin,
    }
    text = markdown(document)
    if folder := folder_of(arguments):
        write_json(folder / "first_answer.json", document)
        (folder / "first_answer.md").write_text(text)
    print(text)
    return 0


def main() -> int:
    """The command line."""
    parser = parser_of("first_answer", __doc__)
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads of each form; default %(default)s"
    )
    add_quick_and_out(parser)
    return exit_code(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
