"""Options of `opensled bench serve`, and their defaults."""

from dataclasses import dataclass
from math import inf

from lab.testbed.baselines import BASELINES, USUAL
from lab.testbed.load.load import ARRIVALS
from lab.testbed.load.sources import HELDOUT, SYNTHETIC
from opensled.cli.config import option
from opensled.core.errors import UsageError

AS_WRITTEN = "fleet"  # as a baseline: the fleet as its file says
SECONDS = "S"


def baseline_names(text: str) -> list[str]:
    """Names between commas; raises UsageError for one that is not known."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*BASELINES, AS_WRITTEN):
            raise UsageError(
                f"unknown baseline {name!r}; choose from {', '.join(BASELINES)}, or {AS_WRITTEN} for the unchanged file"
            )
    if not names:
        raise UsageError("name at least one baseline")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class BenchServeConfig:
    """The fleet under load, its users, and the measures. All times are emulated if the fleet's time is dilated."""

    fleet: str = option(
        "",
        "fleet to start: a TOML file, or a bundled fleet (kitchen, campus, home); default: kitchen",
        metavar="FILE",
        group="fleet",
        often=True,
    )
    baselines: str = option(
        ",".join(USUAL),
        f"configurations of the fleet to measure in turns: {', '.join(BASELINES)}; {AS_WRITTEN} = the unchanged file",
        metavar="A,B",
        check=baseline_names,
        often=True,
    )
    url: str = option(
        "",
        "measure running OpenAI APIs instead, for example http://127.0.0.1:8411/v1",
        metavar="URL,URL",
        often=True,
    )
    key_file: str = option("", "file with the API key for --url, file mode 600", metavar="FILE")
    model: str = option("", "model name for --url; default: the first model that it lists")
    users: int = option(
        0,
        "total number of users; 0 = the number in the fleet's file, or one for each --url",
        low=0,
        metavar="N",
        often=True,
    )
    dilation: float = option(
        0.0, "real seconds for each emulated second; 0 = the number in the fleet's file", low=0, metavar="D"
    )
    workload: str = option(
        HELDOUT,
        f"requests of the users: {HELDOUT} (tasks of the tiny family), {SYNTHETIC}, or a file of JSON lines",
        metavar="FILE",
        group="requests",
        often=True,
    )
    items: int = option(120, "number of different items", low=1, metavar="N")
    max_tokens: int = option(64, "maximum length of an answer, in tokens", low=1, metavar="N", often=True)
    turns: int = option(1, "maximum number of turns of each chat in a file", low=1, metavar="N")
    prompt_tokens: int = option(64, f"{SYNTHETIC}: median length of a prompt", low=1, metavar="N")
    output_tokens: int = option(48, f"{SYNTHETIC}: median length of an answer", low=1, metavar="N")
    prefixes: int = option(0, f"{SYNTHETIC}: number of prefixes that prompts share", low=0, metavar="K")
    prefix_tokens: int = option(64, f"{SYNTHETIC}: length of each prefix", low=1, metavar="N")
    arrivals: str = option(
        "closed",
        "times of the requests; closed: each user sends the next request after the answer",
        choices=ARRIVALS,
        group="times",
        often=True,
    )
    rate: float = option(
        1.0, "requests/s of all users together, for poisson and bursty", low=1e-6, metavar="R", often=True
    )
    burstiness: float = option(
        0.5, "shape of the gamma distribution of bursty: 1 = poisson, less = burstier", low=1e-3, metavar="B"
    )
    trace: str = option("", "file of arrival times in seconds, one per line; sets --arrivals trace")
    think: float = option(0.0, "mean seconds that a user thinks between two requests", low=0, metavar=SECONDS)
    warmup: float = option(2.0, "seconds before the measurement", low=0, metavar=SECONDS)
    duration: float = option(10.0, "seconds to measure", low=0.1, metavar=SECONDS, often=True)
    repeats: int = option(
        1, "number of runs of each baseline; 2 or more give confidence intervals", low=1, metavar="N"
    )
    seed: int = option(0, "seed of arrivals, orders and synthetic items", low=0, metavar="N")
    pace: float = option(
        10.0,
        "tokens/s at which a user counts as served",
        low=0,
        metavar="R",
        group="service goals",
        often=True,
    )
    ttft: float = option(inf, "goodput: maximum seconds to the first token", low=0, metavar=SECONDS)
    tpot: float = option(inf, "goodput: maximum seconds for each further token", low=0, metavar=SECONDS)
    e2el: float = option(inf, "goodput: maximum seconds to the last token", low=0, metavar=SECONDS)
    out: str = option(
        "", "file for all figures and their origin, as JSON", metavar="FILE", group="output", often=True
    )
    json: bool = option(False, "print this JSON instead of the table", often=True)
