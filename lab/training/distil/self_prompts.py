"""What the target is asked, and where it asks itself: the scripts of the texts that the draft learns from.

Most questions are the target's own. After the empty header of a user's turn it writes what users say, because it was
trained on whole chats; a few first words choose the kind of text. Instructions that quote use documentation, replies
of the tiny family's tasks, and texts that the target makes up.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lab.training.distil.documentation import passage
from lab.training.tasks import arithmetic, descriptions, dialogue, howto, small_talk, stories, units
from lab.training.tasks.code import CHAT_TASK
from opensled.core.messages import ChatMessage
from verify_server.text.gguf_text import GgufText

QUESTION_TOKENS, ANSWER_TOKENS = 96, 192  # at most
ANSWER_TEMPERATURES = (0.0, 0.8)  # drawn alike: users ask for greedy answers and for sampled ones


@dataclass(frozen=True)
class Given:
    """Tokens that the target reads."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """A turn that the target writes: at most `most` tokens. `answer`: the assistant's turn, not a user's."""

    most: int
    temperature: float
    answer: bool


@dataclass(frozen=True)
class Script:
    """One text: parts in their order. `kind` is a name of `SOURCES`."""

    kind: str
    parts: tuple[Given | Written, ...]

    @property
    def most(self) -> int:
        """Its length in tokens, at most."""
        return sum(len(part.ids) if isinstance(part, Given) else part.most + 1 for part in self.parts)


class Frame:
    """The ids around the turns of a chat, cut out of rendered chats: no template is known here."""

    def __init__(self, text: GgufText) -> None:
        self.text = text
        one, other = (text.render([ChatMessage("user", word)]) for word in ("yes", "no"))
        head = _common(one, other)
        tail = _common(one[::-1], other[::-1])
        self.user, self.assistant = one[:head], one[len(one) - tail :]
        turns = [ChatMessage("user", "yes"), ChatMessage("assistant", "yes"), ChatMessage("user", "no")]
        whole = text.render(turns)
        begin = len(one) + 1  # after the assistant's "yes"
        self.next_user = whole[begin : len(whole) - tail - 1]

    def ids(self, words: str) -> tuple[int, ...]:
        return self.text.encode(words) if words else ()


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next(n for n, (a, b) in enumerate(zip(one, other)) if a != b)


Seed = Callable[[random.Random], tuple[str, bool]]  # the user's (first) words; whether the target writes on


def _begun(*words: str) -> Seed:
    return lambda rng: (rng.choice(words), True)


def _quoting(*instructions: str) -> Seed:
    """A passage after or before an instruction; one in three is a text that the target makes up."""

    def seed(rng: random.Random) -> tuple[str, bool]:
        instruction, draw = rng.choice(instructions), rng.random()
        if draw < 0.35:
            return f"{instruction}\n\n", True
        quoted = passage(rng) if draw < 0.75 else _reply(rng)
        return (f"{quoted}\n\n{instruction}" if draw > 0.9 else f"{instruction}\n\n{quoted}"), False

    return seed


def _reply(rng: random.Random) -> str:
    tasks = (stories.TASK, descriptions.TASK, howto.TASK, dialogue.TASK)
    replies = [rng.choice(tasks).draw_from(rng, "train").reply for _ in range(rng.randint(1, 3))]
    return "\n".join(replies)


def _asked(*tasks: object) -> Seed:
    return lambda rng: (rng.choice(tasks).draw_from(rng, "train").text, False)  # type: ignore[attr-defined]


OPENINGS = (
    "How do I", "How can I", "What is", "What are the", "Why do", "Why is", "Can you explain", "I feel", "I want to",
    "Tell me a story about", "Give me some tips", "Write a short story", "Write a poem about", "Who was", "When did",
    "Write an email to", "My friend", "Explain", "Describe", "What's the best way to", "I'm planning", "Is it",
    "Translate into French:", "Translate the following sentence into Spanish:", "Compare", "Suggest", "Hi!", "Help me",
)  # fmt: skip
CODE = (
    "Write a Python function that", "Write a Python function to", "Write a Python program", "Write a Python class",
    "Write a function in JavaScript that", "How do I use a dictionary in Python", "Fix this Python code:\n```python\n",
    "Explain what this code does:\n```python\n", "Write a SQL query that", "Write a bash script that",
    "Complete this function:\n```python\ndef ", "Write unit tests for", "How do I read a file in Python",
    "Convert this code to Python:\n", "What is wrong with this code?\n```\n", "Write an HTML page", "Implement",
)  # fmt: skip
SUMS = (
    "A train travels", "A shop sells", "If a", "If 3", "Calculate", "What is 12", "What is 15% of", "Solve", "How many",
    "Anna has", "Tom buys", "A recipe needs", "What is the area of", "Convert", "What is the sum of", "A car",
    "John has", "What is 7", "Find the", "A farmer", "The price of",
)  # fmt: skip
EXTRACT = (
    "List all names in the following text.", "Which functions or classes does the text name? Quote the text.",
    "Extract the most important facts from the following text as a list.", "Quote the most important sentence.",
    "Read the following text. Which numbers does the text mention? List them with their sentences.",
    "Read the following text and list the key terms with the words that the text uses for them.",
    "Extract all dates and places from this text:", "Find all verbs in the following text.",
    "Read the text and answer: what is it about, and who or what is named in it?", "Quote the first two sentences.",
)  # fmt: skip
SUMMARIZE = (
    "Summarize the following text in a few sentences.", "What are the main points of this text?",
    "Summarize this text:", "Give the three most important points of the following text.",
    "Summarize the following text in one sentence.",
    "Write a short summary of the text.", "What is the following text about?", "TL;DR of this text, please:",
    "Give the text a title and summarize it.", "Explain the following text to a beginner.",
)  # fmt: skip
REWRITE = (
    "Rewrite the following text in simpler words.", "Make this text more polite:", "Make the following text shorter:",
    "Correct the spelling and grammar of this text and repeat it:", "Repeat the following text, one sentence a line.",
    "Rewrite the following text in the past tense.", "Rewrite this text as a list:", "Rewrite this e-mail:",
    "Rewrite the text and keep all names.", "Rewrite the following paragraph to be more formal:",
    "Paraphrase the following text:", "Change the following text to the first person:", "Edit this text for clarity:",
)  # fmt: skip
# Kind: its share of the texts, and where its user's turn comes from.
SOURCES: dict[str, tuple[float, Seed]] = {
    "open chat": (0.14, _begun("")),
    "openings": (0.18, _begun(*OPENINGS)),
    "code": (0.15, _begun(*CODE)),
    "arithmetic": (0.10, _begun(*SUMS)),
    "sums": (0.03, _asked(arithmetic.TASK, units.TASK)),
    "tasks": (0.05, _asked(small_talk.TASK, stories.TASK, descriptions.TASK, howto.TASK, dialogue.TASK, CHAT_TASK)),
    "extraction": (0.12, _quoting(*EXTRACT)),
    "summary": (0.11, _quoting(*SUMMARIZE)),
    "rewriting": (0.12, _quoting(*REWRITE)),
}  # fmt: skip
QUOTING = ("extraction", "summary", "rewriting")
# What users say next: about a text that they quoted, about code, about anything else.
ABOUT_TEXT = (
    "Now say it in simpler words.", "Now summarize it in one sentence.", "Quote the most important sentence.",
    "Make a list of the main points.", "Translate your answer into French.", "Make your answer shorter.",
    "Repeat the text, but more formally.", "Which names does the text contain?", "Write a title for it.",
    "Rewrite your answer as an e-mail.", "Correct the text and repeat it.", "Explain the last point.",
)  # fmt: skip
ABOUT_CODE = (
    "Add comments to the code.",
    "Now write a test for it.",
    "Explain it line by line.",
    "Make it shorter.",
)
ABOUT_ANYTHING = (
    "Can you explain that in more detail?", "Make it shorter, please.", "Give me an example.", "Why is that so?",
    "Thank you! What else should I know?", "Rewrite that as a list.", "Are you sure? Check it step by step.",
    "Say it as if I were ten years old.", "And what is the opposite of that?", "Summarize your answer.",
)  # fmt: skip
ANSWERS = (1, 2)  # of a short text, drawn alike
LONG_ANSWERS = (2, 3)


def draw(frame: Frame, rng: random.Random, long: bool) -> Script:
    """The next script; `long`: of those that quote, or in which both sides are the target's for two turns."""
    kinds = [kind for kind in SOURCES if (kind in QUOTING) == long or kind == "open chat"]
    kind = rng.choices(kinds, [SOURCES[kind][0] for kind in kinds])[0]
    words, goes_on = SOURCES[kind][1](rng)
    parts: list[Given | Written] = [
        Given(frame.user + frame.ids(words)),
        *_question(goes_on, kind in QUOTING),
    ]
    parts += [Given(frame.assistant), _answer(rng)]
    for _ in range(rng.choice(LONG_ANSWERS if long else ANSWERS) - 1):
        parts += [*_next_question(frame, rng, kind, long), Given(frame.assistant), _answer(rng)]
    return Script(kind, tuple(parts))


def _next_question(frame: Frame, rng: random.Random, kind: str, long: bool) -> list[Given | Written]:
    if long and kind == "open chat":
        return [Given(frame.next_user), *_question(True)]
    says = ABOUT_TEXT if kind in QUOTING else ABOUT_CODE if kind == "code" else ABOUT_ANYTHING
    return [Given(frame.next_user + frame.ids(rng.choice(says)))]


def drawn(frame: Frame, seed: int, long: bool) -> Iterator[Script]:
    """Endless scripts of one seed."""
    rng = random.Random(seed)
    while True:
        yield draw(frame, rng, long)


def _question(goes_on: bool, quoted: bool = False) -> list[Written]:
    return [Written(QUESTION_TOKENS * (2 if quoted else 1), 1.0, answer=False)] if goes_on else []


def _answer(rng: random.Random) -> Written:
    return Written(ANSWER_TOKENS, rng.choice(ANSWER_TEMPERATURES), answer=True)
