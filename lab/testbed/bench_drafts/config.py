"""Options of `opensled bench drafts`, and their defaults."""

from dataclasses import dataclass

from hw_profiles import catalog
from opensled.cli.addresses import address_option
from opensled.cli.config import option


@dataclass(frozen=True)
class BenchDraftsConfig:
    """The server, whose texts are counted, and a draft to compare with them. Nothing has to be installed there."""

    url: str = address_option(
        "",
        "the server: llama-server, vLLM, SGLang, Ollama, LM Studio, opensled, ..., for example http://127.0.0.1:8080/v1",
        port=8080,
        scheme="http://",
        positional=True,
        metavar="URL",
    )
    model: str = option("", "name of its model; default: the first one that it lists", often=True)
    token_file: str = option(
        "",
        "file with the server's API key, file mode 600; default: the environment's OPENAI_API_KEY",
        metavar="FILE",
        often=True,
        sent_to=("url",),
    )
    draft_url: str = address_option(
        "",
        "a server that holds a draft model: llama-server, Ollama, LM Studio, or another with /v1/completions",
        port=8080,
        scheme="http://",
        metavar="URL",
        group="draft",
        often=True,
    )
    draft_model: str = option(
        "",
        "draft model on this machine: a name of `opensled models list` or a GGUF file; with --draft-url: its name there",
        metavar="MODEL",
        often=True,
    )
    draft_key: str = option(
        "", "file with the key of --draft-url, file mode 600", metavar="FILE", sent_to=("draft_url",)
    )
    link: str = option(
        "wifi-good", "link between devices and server", choices=tuple(catalog.names("links")), metavar="LINK"
    )
    quick: bool = option(
        False, "about a minute with a small model: up to 8 texts, once", group="measurement", often=True
    )
    tokens: int = option(64, "tokens of each text; 32 with --quick", low=8, metavar="N")
    machine: str = option(
        "", "the server's machine in words, for the leaderboard: 'DGX Spark'", metavar="WORDS", often=True
    )
    out: str = option(
        "bench-drafts.json",
        "file for all figures and their origin",
        metavar="FILE",
        group="output",
        often=True,
    )
    json: bool = option(False, "print this JSON instead of the table", often=True)
