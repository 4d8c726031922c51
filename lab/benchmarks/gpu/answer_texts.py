"""Answers written by an engine with drafts of many kinds, in ragged steps: rule match by hand."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from verify_server.engine.base import SampleRequest, Segment
from verify_server.engine.torch.torch_engine import TorchEngine

TOGETHER = 16  # texts in a step, at most
CHUNK = 48  # rows of a prompt in a step, at most
LONGEST = 8  # tokens of a chain
LARGEST = 20  # tokens of a tree, and now and then all that one may have
KINDS = ("right", "wrong", "mixed", "tree", "wrong tree")  # of drafts, beside "none"
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class Question:
    """What is to be answered, and how."""

    prompt: tuple[int, ...]
    params: SamplingParams
    key: bytes
    tokens: int  # of the answer


@dataclass(frozen=True)
class Draft:
    """Tokens behind a text; of each its parent, -1 = the text."""

    ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    is_tree: bool = False

    def depth(self, index: int) -> int:
        """1 behind the text."""
        return 1 + (self.depth(self.parents[index]) if self.parents[index] >= 0 else 0)

    def path_of(self, own: Sequence[int]) -> list[int]:
        """The tokens that stand. `own`: the engine's token after the text, then after each token of the draft."""
        path: list[int] = []
        while True:
            last = path[-1] if path else -1
            children = [index for index, parent in enumerate(self.parents) if parent == last]
            agreeing = [index for index in children if self.ids[index] == own[last + 1]]
            if not agreeing:
                return path
            path.append(agreeing[0])


@dataclass
class Answer:
    """A text that grows, with drafts of one kind. `right`: the answer that was found without drafts."""

    question: Question
    kind: str
    right: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    grown: list[int] = field(default_factory=list)
    held: int = 0  # tokens in KV
    decisions: int = 0  # steps that gave it tokens
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of the answer; what a last draft gave beyond its end is not counted."""
        return tuple(self.grown[: self.question.tokens])

    @property
    def is_done(self) -> bool:
        return len(self.grown) >= self.question.tokens

    @property
    def text(self) -> tuple[int, ...]:
        """The prompt and what was written."""
        return (*self.question.prompt, *self.grown)

    def take(self, draft: Draft, own: Sequence[int]) -> list[int]:
        """What the engine decided; returns the path through the draft that stands."""
        path = draft.path_of(own)
        self.held = len(self.text) + len(path)
        self.grown += [*[draft.ids[index] for index in path], own[path[-1] + 1 if path else 0]]
        self.decisions += 1
        self.drafted += len(draft.ids)
        self.accepted += len(path)
        return path


def questions(
    count: int, vocabulary: int, tokens: int, prompts: tuple[int, int], seed: int = 0
) -> list[Question]:
    """Random prompts of `prompts` tokens at least and at most; half of the answers greedy."""
    draw = random.Random(seed)
    return [
        Question(
            tuple(draw.choices(range(vocabulary), k=draw.randint(*prompts))),
            SamplingParams(temperature=TEMPERATURES[number % len(TEMPERATURES)]),
            noise_key(number),
            tokens,
        )
        for number in range(count)
    ]


@dataclass
class Writer:
    """Has an engine write answers together; counts its steps."""

    engine: TorchEngine
    draw: random.Random
    largest: int  # tokens of the largest trees
    steps: int = 0

    def write(self, answers: Sequence[Answer]) -> None:
        """Until all are done."""
        longest = max(len(each.question.prompt) + each.question.tokens for each in answers)
        size = -(-(longest + self.largest + 1) // self.engine.info.block_size)
        together = min(TOGETHER, self.engine.info.num_blocks // size)
        for first in range(0, len(answers), together):
            lot = answers[first : first + together]
            for place, answer in enumerate(lot):
                answer.blocks = tuple(range(place * size, (place + 1) * size))
            while waiting := [answer for answer in lot if not answer.is_done]:
                self._step(self.draw.sample(waiting, self.draw.randint(1, len(waiting))))

    def _step(self, chosen: Sequence[Answer]) -> None:
        drafts = [self._draft(answer) for answer in chosen]
        segments = [self._segment(answer, draft) for answer, draft in zip(chosen, drafts)]
        scores = self.engine.forward(segments)
        self.steps += 1
        requests: list[SampleRequest] = []
        for answer, draft, segment in zip(chosen, drafts, segments):
            requests += _requests(answer, draft, segment.rows, len(requests))
        found = iter(scores.sample(requests))
        for answer, draft, segment in zip(chosen, drafts, segments):
            own = [_token(next(found)) for _ in range(segment.rows)]
            self._settle(answer, draft, segment, own)

    def _segment(self, answer: Answer, draft: Draft) -> Segment:
        """A chunk of the prompt, or the rest of the text and the draft."""
        ahead = answer.text[answer.held :]
        if (
            len(ahead) > 1
        ):  # a prompt: its last token comes in a step of its own or, by chance, with the others
            count = self.draw.randint(1, CHUNK)
            if count < len(ahead):
                return Segment(ahead[:count], answer.held, answer.blocks, 0)
        parents = draft.parents if draft.is_tree else ()
        return Segment((*ahead, *draft.ids), answer.held, answer.blocks, 1 + len(draft.ids), parents)

    def _settle(self, answer: Answer, draft: Draft, segment: Segment, own: Sequence[int]) -> None:
        """Takes the tokens; the KV of a tree's path comes to where a chain's would be."""
        if not own:
            answer.held += len(segment.tokens)
            return
        end = len(answer.text)
        path = answer.take(draft, own)
        moves = [(end + index, end + place) for place, index in enumerate(path) if index != place]
        if moves:
            self.engine.compact(answer.blocks, moves)

    def _draft(self, answer: Answer) -> Draft:
        if answer.kind == "none":
            return Draft()
        follows = answer.right[len(answer.grown) :]
        if "tree" in answer.kind:
            chance = 0.3 if answer.kind == "wrong tree" else 0.9
            count = self.draw.choice([self.largest, *[self.draw.randint(2, min(LARGEST, self.largest))] * 5])
            return self._tree(follows, count, chance)
        count = self.draw.randint(1, LONGEST)
        right = {"right": count, "wrong": 0}.get(answer.kind, self.draw.randint(0, count))
        ids = [*follows[:right], *[self._other(each) for each in follows[right:count]]]
        return Draft(tuple(ids), tuple(range(-1, len(ids) - 1)))

    def _tree(self, follows: Sequence[int], nodes: int, chance: float) -> Draft:
        """Behind a right token comes a right one by this chance; all others are random."""
        ids: list[int] = []
        parents: list[int] = []
        right = {-1: 0}  # index of a token that is right -> its depth
        for index in range(nodes):
            parent = self.draw.choice([-1, index - 1, self.draw.randrange(-1, index)]) if index else -1
            depth = right.get(parent)
            is_right = depth is not None and depth < len(follows) and self.draw.random() < chance
            if depth is not None and is_right:
                right[index] = depth + 1
            ids.append(follows[depth] if depth is not None and is_right else self._any())
            parents.append(parent)
        return Draft(tuple(ids), tuple(parents), is_tree=True)

    def _any(self) -> int:
        return self.draw.randrange(self.engine.info.vocab_size)

    def _other(self, id: int) -> int:
        return (id + 1) % self.engine.info.vocab_size


def _requests(answer: Answer, draft: Draft, rows: int, first: int) -> list[SampleRequest]:
    """For the token after the text, and for that after each token of the draft."""
    behind = [0, *[draft.depth(index) for index in range(len(draft.ids))]]
    question, end = answer.question, len(answer.text)
    return [
        SampleRequest((first + row,), question.params, question.key, end + behind[row]) for row in range(rows)
    ]


def _token(answer: list[int] | Exception) -> int:
    if isinstance(answer, Exception):
        raise answer
    return answer[0]
