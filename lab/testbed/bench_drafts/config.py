"""Options of `opensled bench drafts`, and their defaults."""

from dataclasses import dataclass
from functools import partial

from hw_profiles import catalog
from opensled.cli.addresses import address_option
from opensled.cli.config import option

_often = partial(option, often=True)
_url = partial(address_option, "", port=8080, scheme="http://", metavar="URL", often=True)
_key_file = partial(option, "", metavar="FILE")


@dataclass(frozen=True)
class BenchDraftsConfig:
    """A server, whose texts are counted, and a draft that is compared with them. Nothing is installed there."""

    url: str = _url(
        "llama-server, vLLM, SGLang, Ollama, LM Studio or another with OpenAI's API", positional=True
    )
    model: str = _often("", "name of its model; default: the first one that it lists")
    token_file: str = _key_file(
        "file with its API key, mode 600; default: OPENAI_API_KEY", sent_to=("url",), often=True
    )
    draft_url: str = _url("server of a draft model: llama-server, or with /v1/completions", group="draft")
    draft_model: str = _often("", "draft model here, a name or a GGUF file; with --draft-url: its name there")
    draft_key: str = _key_file("file with the key of --draft-url, mode 600", sent_to=("draft_url",))
    link: str = option("wifi-good", "link of devices that would draft", check=catalog.link, metavar="LINK")
    quick: bool = _often(
        False, "a minute with a small model: one run of 32 tokens a text", group="measurement"
    )
    machine: str = _often("", "its machine in words, for the leaderboard: 'DGX Spark'", metavar="WORDS")
    out: str = _often(
        "bench-drafts.json", "file for all figures and their origin", metavar="FILE", group="output"
    )
    json: bool = _often(False, "print this JSON instead of the table")
