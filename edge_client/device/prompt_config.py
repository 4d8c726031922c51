"""Options of the commands that answer prompts (`generate`, `chat`), and their defaults."""

from dataclasses import dataclass

from edge_client.device.config import COLOR_CHOICES, COLOR_HELP, DeviceConfig
from opensled.cli.config import option
from opensled.core.messages import MAX_PENALTY, MIN_REPETITION, SamplingParams


@dataclass(frozen=True)
class SamplingConfig(DeviceConfig):
    """How the target samples."""

    max_tokens: int = option(
        256,
        "maximum length of the answer, in tokens",
        low=1,
        high=2**31 - 1,
        metavar="N",
        group="sampling",
        often=True,
    )
    temperature: float = option(
        0.0,
        "sampling temperature; higher = more varied; 0 = always the likeliest token",
        low=0,
        high=100,
        metavar="T",
        often=True,
    )
    top_k: int = option(0, "sample among the K likeliest tokens; 0 = off", low=0, high=2**31 - 1, metavar="K")
    top_p: float = option(
        1.0,
        "sample among the likeliest tokens whose probabilities add up to P; 1 = off",
        low=1e-9,
        high=1,
        metavar="P",
    )
    seed: int | None = option(
        None,
        "seed of sampling; the same seed gives the same answer; default: a random one",
        low=-(2**63),
        high=2**63 - 1,
        metavar="N",
        often=True,
    )
    min_p: float = option(
        0.0,
        "sample among tokens whose probability is P times that of the likeliest, or more; 0 = off",
        low=0,
        high=1,
        metavar="P",
    )
    presence_penalty: float = option(
        0.0,
        "number subtracted from the logit of each token that the answer already contains; 0 = off",
        low=-MAX_PENALTY,
        high=MAX_PENALTY,
        metavar="X",
        file_only=True,
    )
    frequency_penalty: float = option(
        0.0,
        "number subtracted from the logit of a token for each time that the answer contains it; 0 = off",
        low=-MAX_PENALTY,
        high=MAX_PENALTY,
        metavar="X",
        file_only=True,
    )
    repetition_penalty: float = option(
        1.0,
        "divisor of positive logits, and factor of negative ones, of tokens that the answer already contains; tokens "
        "of the prompt do not count; 1 = off",
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
        "the prompt, in quotes; text on standard input is put before it, as in: "
        'cat letter.txt | opensled generate "Sum this up."; without it, or with -: standard input alone',
        positional=True,
        optional=True,
        metavar="TEXT",
        group="prompt and answer",
    )
    image: str = option(
        "",
        "pictures (PNG, JPEG or WebP) for the prompt, comma-separated; the target must be a vision model",
        metavar="FILE[,FILE]",
        often=True,
    )
    raw: bool = option(False, "continue the prompt as plain text, without the chat template", often=True)
    json: bool = option(False, "print the answer and its statistics as JSON", often=True)


@dataclass(frozen=True)
class ChatConfig(SamplingConfig):
    """A conversation in the terminal."""

    system: str = option(
        "",
        "system message, which tells the model how to behave",
        metavar="TEXT",
        group="conversation",
        often=True,
    )
    show_drafts: bool = option(
        False, "colour each token by its origin: this device or the server", often=True
    )
    show_vetted: bool = option(
        False,
        "behind a relay: show tokens that the relay has vetted, marked, before the target confirms them",
    )
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    history: bool = option(True, "save typed lines, for the arrow keys in the next conversation", often=True)
