"""Options of `opensled bench drafts`, and their defaults."""

from dataclasses import dataclass
from functools import partial

from hw_profiles import catalog
from opensled.cli.addresses import address_option
from opensled.cli.config import option

_url = partial(address_option, "", port=8080, scheme="http://", metavar="URL")
_often = partial(option, often=True)


@dataclass(frozen=True)
class BenchDraftsConfig:
    """A server, whose texts are counted, and a draft that is compared with them. Nothing is installed there."""

    url: str = _url(
        "llama-server, vLLM, SGLang, Ollama, LM Studio or another OpenAI-compatible server", positional=True
    )
    model: str = _often("", "name of its model; default: the first one that it lists")
    token_file: str = _often(
        "", "file with its API key, mode 600; default: OPENAI_API_KEY", metavar="FILE", sent_to=("url",)
    )
    draft_url: str = _url(
        "server of a draft model: llama-server, Ollama, LM Studio or another with /v1/completions",
        often=True,
        group="draft",
    )
    draft_model: str = _often(
        "",
        "draft model here: a name of `opensled models list` or a GGUF file; with --draft-url: its name there",
    )
    draft_key: str = option(
        "", "file with the key of --draft-url, mode 600", metavar="FILE", sent_to=("draft_url",)
    )
    link: str = option("wifi-good", "link of devices that would draft", check=catalog.link, metavar="LINK")
    quick: bool = _often(
        False, "a minute with a small model: one run of 32 tokens a text", group="measurement"
    )
    tokens: int = option(64, "tokens of each text; at most 32 with --quick", low=8, metavar="N")
    machine: str = _often(
        "", "the server's machine in words, for the leaderboard: 'DGX Spark'", metavar="WORDS"
    )
    out: str = _often(
        "bench-drafts.json", "file for all figures and their origin", metavar="FILE", group="output"
    )
    json: bool = _often(False, "print this JSON instead of the table")
