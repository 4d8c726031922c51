"""The last word on answers: plain transformers, which share no code with the product, follow truths and suspects."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.testbed.soak.account import Account, Suspect
from lab.testbed.soak.kinds import TargetKind
from lab.testbed.soak.questions import Course, Question
from opensled.models.store import model_path

if TYPE_CHECKING:
    from lab.testbed.forcing import Followed
    from lab.testbed.reference import Reference

# Leads, in logits, that may flip: of llama.cpp see ENGINES of demo_tiny.py
BOUNDS = {"torch": 0.0, "llamacpp": 0.03}


class Judge:
    """Loads the reference of one target; minutes on a busy machine."""

    def __init__(self, kind: TargetKind) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # so small a model gains nothing by threads
        from lab.testbed.reference import Reference
        from lab.testbed.vision_reference import VisionReference

        self.reference: Reference = (VisionReference if kind.sees else Reference)(model_path(kind.model))
        self._known: dict[tuple[str, tuple[int, ...]], list[float]] = {}

    def truths(self, course: Course, engine: str) -> list[str]:
        """What is wrong with the truths of a target: each must be what the reference writes, up to flips."""
        passed = [
            self._leads(question, truth.ids) for question, truth in zip(course.questions, course.truths)
        ]
        return [
            f"the truth of question {number} is not what the reference writes"
            for number, leads in enumerate(passed)
            if max(leads, default=0.0) > BOUNDS[engine]
        ]

    def settle(self, account: Account, course: Course, engine: str) -> None:
        """Decide on every suspect: flips at near ties, or damage."""
        for suspect in account.suspects:
            leads = self._leads(course.questions[suspect.question], suspect.told)
            if self._is_flip(suspect, leads, course, BOUNDS[engine]):
                account.flips += sum(lead > 0 for lead in leads)
            else:
                account.damages.append(suspect.damage)
                account.wrong(f"question {suspect.question}: {suspect.damage} in {suspect.told}")

        self._settle_texts(account, course, BOUNDS[engine])

    def _settle_texts(self, account: Account, course: Course, bound: float) -> None:
        """The same for answers of which the text alone is known. One that broke off must begin like a whole one that
        the reference could have written."""
        written: dict[int, set[str]] = defaultdict(set)
        for suspect in sorted(account.text_suspects, key=lambda each: not each.complete):
            known, truth = written[suspect.question], course.truths[suspect.question].text
            if suspect.text not in known and suspect.complete:
                followed = self._followed(course.questions[suspect.question], suspect.text, bound)
                if followed is not None:
                    known.add(suspect.text)
                    account.flips += followed.flips
            if not any(
                suspect.text == text[: None if suspect.complete else len(suspect.text)] for text in known
            ):
                account.damages.append(suspect.damage)
                account.wrong(f"question {suspect.question} over the API: {suspect.text!r} is not {truth!r}")

    def _followed(self, question: Question, text: str, bound: float) -> Followed | None:
        """How the reference follows a text up to flips; None = it would not have written it."""
        from lab.testbed.forcing import follow

        return follow(self.reference, question.body, text, bound) if bound else None

    def _is_flip(self, suspect: Suspect, leads: Sequence[float], course: Course, bound: float) -> bool:
        """Whether the reference could have written it: no lead above the bound, and an end where one is due."""
        ended = not suspect.complete or (
            len(suspect.told) == course.questions[suspect.question].params.max_tokens
            or suspect.told[-1] in course.info.eos_ids
        )
        return bound > 0 and ended and max(leads, default=0.0) <= bound

    def _leads(self, question: Question, told: tuple[int, ...]) -> list[float]:
        """By how many logits the reference's choice leads over each token, teacher-forced; 0 = it is the choice."""
        key = (question.key, told)
        if key not in self._known:
            self._known[key] = self._computed(question, told)
        return self._known[key]

    def _prompt(self, question: Question) -> list[int]:
        """Its ids; where there are pictures, the reference sees them from then on."""
        from lab.testbed.vision_reference import VisionReference

        messages = question.body["messages"]
        if not isinstance(self.reference, VisionReference):
            return self.reference.render_chat(messages)
        return self.reference.show(messages, [image.data for image in question.opening().images])

    def _computed(self, question: Question, told: tuple[int, ...]) -> list[float]:
        from lab.testbed.reference import Sampling, key_of_seed

        params = question.params
        noise_key = b"" if params.seed is None else key_of_seed(params.seed)
        sampling = Sampling(params.temperature, key=noise_key)
        prompt = self._prompt(question)
        if not told:
            return []
        rows = self.reference.logits([*prompt, *told[:-1]], last=len(told))
        scores = [sampling.scores(row, len(prompt) + place) for place, row in enumerate(rows)]
        unit = params.temperature or 1.0
        return [unit * float(row.max() - row[token]) for row, token in zip(scores, told)]
