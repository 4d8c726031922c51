"""Options of `opensled run` and their defaults. It reads nothing of `chat` and `serve`: it is for a first try."""

from dataclasses import dataclass

from edge_client.device.config import AUTO, COLOR_CHOICES, COLOR_HELP
from opensled.cli.config import option
from opensled.process.logs import LEVELS


@dataclass(frozen=True)
class RunConfig:
    """A server and a conversation with it, on this machine."""

    name: str = option(
        "",
        "a name of `opensled models list`, ORG/REPO[:QUANT] of Hugging Face, a GGUF file or a folder",
        positional=True,
        metavar="NAME",
    )
    system: str = option("", "system message: how the target should behave", metavar="TEXT", often=True)
    show_drafts: bool = option(
        False, "colour every token by its origin: the draft model or the target", often=True
    )
    max_tokens: int = option(256, "most tokens of an answer", low=1, high=2**31 - 1, metavar="N", often=True)
    temperature: float = option(
        0.0, "how freely the target chooses its tokens; 0 = always the likeliest one", low=0, high=100, metavar="T",
        often=True,
    )  # fmt: skip
    engine: str = option(
        "auto", "engine of the target: torch, llamacpp; auto: what suits the files", often=True
    )
    device: str = option("auto", "what computes the target: auto, cpu, cuda or cuda:1", often=True)
    context: int = option(
        0, "most tokens of a conversation; 0 = all that the model has", low=0, metavar="N", often=True
    )
    draft_model: str = option(
        "",
        "draft model: a name, a file or a folder; default: the one that belongs to the target",
        metavar="MODEL",
    )
    drafter: str = option(AUTO, "see opensled chat --help", metavar="NAME")
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    history: bool = option(True, "keep typed lines for the arrow keys of the next conversation")
    log_level: str = option("warning", "lowest level of messages to log", choices=LEVELS)
