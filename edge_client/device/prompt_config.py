"""Options of the verbs that answer prompts (`generate`, `chat`), and their defaults."""

from dataclasses import dataclass

from edge_client.device.config import COLOR_CHOICES, COLOR_HELP, DeviceConfig
from opensled.cli.config import option
from opensled.core.messages import MAX_PENALTY, MIN_REPETITION, SamplingParams


@dataclass(frozen=True)
class SamplingConfig(DeviceConfig):
    """How the target samples."""

    max_tokens: int = option(
        256,
        "most tokens of an answer",
        low=1,
        high=2**31 - 1,
        metavar="N",
        group="how the target writes",
        often=True,
    )
    temperature: float = option(
        0.0,
        "how freely the target chooses its tokens; 0 = always the likeliest one",
        low=0,
        high=100,
        metavar="T",
        often=True,
    )
    top_k: int = option(0, "keep only the K likeliest tokens; 0 = off", low=0, high=2**31 - 1, metavar="K")
    top_p: float = option(
        1.0, "keep the likeliest tokens that together reach P; 1 = off", low=1e-9, high=1, metavar="P"
    )
    seed: int | None = option(
        None,
        "the same seed gives the same answer; default: the server draws one",
        low=-(2**63),
        high=2**63 - 1,
        metavar="N",
        often=True,
    )
    min_p: float = option(
        0.0, "keep tokens at least P times as probable as the likeliest; 0 = off", low=0, high=1, metavar="P"
    )
    presence_penalty: float = option(
        0.0,
        "subtracted from the logit of tokens that the answer has; 0 = off",
        low=-MAX_PENALTY,
        high=MAX_PENALTY,
        metavar="X",
        file_only=True,
    )
    frequency_penalty: float = option(
        0.0,
        "subtracted for each time that the answer has the token; 0 = off",
        low=-MAX_PENALTY,
        high=MAX_PENALTY,
        metavar="X",
        file_only=True,
    )
    repetition_penalty: float = option(
        1.0,
        "divides a positive logit of tokens that the answer has, multiplies a negative one; the prompt does not count; "
        "1 = off",
        low=MIN_REPETITION,
        high=MAX_PENALTY,
        metavar="X",
        file_only=True,
    )

    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            max_tokens=self.max_tokens,
        )


@dataclass(frozen=True)
class GenerateConfig(SamplingConfig):
    """One prompt, one answer."""

    prompt: str = option(
        "",
        "what to answer, in quotes; a text on standard input comes before it, as in: "
        'cat letter.txt | opensled generate "Sum this up."; - or nothing: standard input alone',
        positional=True,
        optional=True,
        metavar="TEXT",
        group="the prompt and its answer",
    )
    image: str = option(
        "",
        "pictures that the prompt is about, separated by commas: PNG, JPEG or WebP; for a target that sees",
        metavar="FILE[,FILE]",
        often=True,
    )
    raw: bool = option(False, "continue the prompt as it is, without the chat template", often=True)
    json: bool = option(False, "print the answer and its statistics as JSON", often=True)


@dataclass(frozen=True)
class ChatConfig(SamplingConfig):
    """A conversation in the terminal."""

    system: str = option(
        "",
        "system message: how the target should behave",
        metavar="TEXT",
        group="the conversation",
        often=True,
    )
    show_drafts: bool = option(
        False, "colour every token by its origin: this device or the server", often=True
    )
    show_vetted: bool = option(
        False,
        "behind a relay: show what it has vetted, marked, before the target has confirmed it",
    )
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    history: bool = option(True, "keep typed lines for the arrow keys of the next conversation", often=True)
