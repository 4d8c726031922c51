"""What `opensled bench serve` can be told; defaults are here and nowhere else."""

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
                f"no baseline {name!r}; choose from {', '.join(BASELINES)}, or {AS_WRITTEN} for the file as it is"
            )
    if not names:
        raise UsageError("name at least one baseline")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class BenchServeConfig:
    """What is put under load, by whom, and how it is judged. Times are emulated ones where time is dilated."""

    fleet: str = option(
        "",
        "fleet to start: a TOML file, or a bundled one (kitchen, campus); default kitchen",
        metavar="FILE",
        group="what to measure",
        often=True,
    )
    baselines: str = option(
        ",".join(USUAL),
        f"ways to serve the fleet, measured in turns: {', '.join(BASELINES)}; {AS_WRITTEN} = as its file says",
        metavar="A,B",
        check=baseline_names,
        often=True,
    )
    url: str = option(
        "",
        "measure what runs already: OpenAI APIs such as http://127.0.0.1:8411/v1",
        metavar="URL,URL",
        often=True,
    )
    key_file: str = option("", "API key for --url, file mode 600", metavar="FILE")
    model: str = option("", "model to name to --url; default: the first one it lists")
    users: int = option(
        0, "users in all; 0 = as the fleet says, or one for each --url", low=0, metavar="N", often=True
    )
    dilation: float = option(
        0.0, "real seconds for each emulated one; 0 = as the fleet says", low=0, metavar="D"
    )
    workload: str = option(
        HELDOUT,
        f"what users ask: {HELDOUT} (tasks of the tiny family), {SYNTHETIC}, or a file of JSON lines",
        metavar="FILE",
        group="what users ask",
        often=True,
    )
    items: int = option(120, "how many different items are asked", low=1, metavar="N")
    max_tokens: int = option(64, "most tokens of an answer", low=1, metavar="N", often=True)
    turns: int = option(1, "most turns of each chat of a file", low=1, metavar="N")
    prompt_tokens: int = option(64, f"{SYNTHETIC}: median length of a prompt", low=1, metavar="N")
    output_tokens: int = option(48, f"{SYNTHETIC}: median length of an answer", low=1, metavar="N")
    prefixes: int = option(0, f"{SYNTHETIC}: prefixes that many prompts share", low=0, metavar="K")
    prefix_tokens: int = option(64, f"{SYNTHETIC}: length of each", low=1, metavar="N")
    arrivals: str = option(
        "closed",
        "when users ask; closed: each user again after the answer",
        choices=ARRIVALS,
        group="when, and for how long",
        often=True,
    )
    rate: float = option(
        1.0, "requests/s of all users, for poisson and bursty", low=1e-6, metavar="R", often=True
    )
    burstiness: float = option(
        0.5, "shape of the gamma of bursty: 1 = poisson, less = burstier", low=1e-3, metavar="B"
    )
    trace: str = option("", "file of arrival times in seconds, one a line; turns --arrivals trace on")
    think: float = option(0.0, "mean seconds that a user thinks between two requests", low=0, metavar=SECONDS)
    warmup: float = option(2.0, "seconds before anything counts", low=0, metavar=SECONDS)
    duration: float = option(10.0, "seconds that count", low=0.1, metavar=SECONDS, often=True)
    repeats: int = option(1, "runs of each baseline; from 2 on with confidence intervals", low=1, metavar="N")
    seed: int = option(0, "of arrivals, orders and synthetic items", low=0, metavar="N")
    pace: float = option(
        10.0,
        "tokens/s at which a user counts as served",
        low=0,
        metavar="R",
        group="what counts as good",
        often=True,
    )
    ttft: float = option(inf, "goodput: most seconds to the first token", low=0, metavar=SECONDS)
    tpot: float = option(inf, "goodput: most seconds for each further token", low=0, metavar=SECONDS)
    e2el: float = option(inf, "goodput: most seconds to the last token", low=0, metavar=SECONDS)
    out: str = option(
        "",
        "write all figures and where they come from as JSON",
        metavar="FILE",
        group="output",
        often=True,
    )
    json: bool = option(False, "print that JSON instead of the table", often=True)
