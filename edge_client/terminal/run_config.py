"""Options of `opensled run` and their defaults. It is for a first try, and reads no settings of `chat` and `serve`."""

from dataclasses import dataclass

from edge_client.device.config import COLOR_CHOICES, COLOR_HELP
from edge_client.drafters import AUTO, require_drafter
from opensled.cli.config import option
from opensled.models.pasted_names import model_name
from opensled.process.logs import LEVELS


@dataclass(frozen=True)
class RunConfig:
    """A server and a conversation with it, on this machine."""

    model: str = option(
        "",
        "model: a name listed by `opensled models list`, ORG/REPO[:QUANT] on Hugging Face, a GGUF file or a folder",
        bare=True,
        metavar="NAME",
        often=True,
        read=model_name,
    )
    system: str = option(
        "", "system message, which tells the model how to behave", metavar="TEXT", often=True
    )
    show_drafts: bool = option(
        False, "colour each token by its origin: the draft model or the target", often=True
    )
    max_tokens: int = option(
        256, "maximum length of an answer, in tokens", low=1, high=2**31 - 1, metavar="N", often=True
    )
    temperature: float = option(
        0.0, "sampling temperature; higher = more varied; 0 = always the likeliest token", low=0, high=100, metavar="T",
        often=True,
    )  # fmt: skip
    engine: str = option(
        "auto", "engine of the target: torch or llamacpp; auto: the one for the kind of file", often=True
    )
    device: str = option("auto", "processor of the target: auto, cpu, cuda or cuda:1", often=True)
    context: int = option(
        0,
        "maximum length of the conversation, in tokens; 0 = the context length of the model",
        low=0,
        metavar="N",
        often=True,
    )
    draft_model: str = option(
        "",
        "draft model: a name, a file or a folder; default: the model that belongs to the target",
        metavar="MODEL",
        read=model_name,
    )
    drafter: str = option(
        AUTO, "drafter of the chat, as opensled chat --help has it", metavar="NAME", check=require_drafter
    )
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    history: bool = option(True, "save typed lines, for the arrow keys in the next conversation")
    log_level: str = option("warning", "minimum level of log messages", choices=LEVELS)
