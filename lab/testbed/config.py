"""What `opensled demo`, `plan` and `bench report` can be told; defaults are here and nowhere else."""

from dataclasses import dataclass

from hw_profiles.draft_head import KINDS
from lab.testbed.planner.hub_link import check_hub_link
from lab.testbed.planner.objective import MAX_USD
from lab.testbed.planner.task_acceptance import MOST, check_acceptance, told
from opensled.cli.config import option

PACES = (10.0, 20.0, 30.0)  # tokens/s; a quick reader, twice and three times that
MODEL = "model"  # what drafts beside a target: the devices' draft model; else a kind of head


@dataclass(frozen=True)
class DemoConfig:
    """A server and devices on this machine."""

    model: str = option(
        "auto",
        "target: smollm2 (fetched once), the bundled tiny, or auto: smollm2, or tiny if it cannot be fetched",
        choices=("auto", "smollm2", "tiny"),
    )
    max_tokens: int = option(64, "most tokens of an answer", low=1, metavar="N")
    prompts: int = option(4, "prompts for each device, with tiny", low=1, metavar="N")
    draft_length: int = option(
        0, "most tokens of a draft block, with tiny; 0 = as the server hints", low=0, metavar="K"
    )
    engine: str = option("torch", "the server's engine; llamacpp takes tiny", choices=("torch", "llamacpp"))
    mtls: bool = option(
        False, "server and devices ask each other for certificates, and the server for tokens; takes tiny"
    )
    vision: bool = option(
        False,
        "ask the bundled tiny-vision about drawn scenes; the answers show which tokens the device drafted",
    )
    json: bool = option(False, "print the figures as JSON")


@dataclass(frozen=True)
class PlanConfig:
    """Devices, their link, a target, a promise to the users, and prices."""

    device: str = option(
        "orin-nano-super",
        "the devices: a profile (opensled profile list), or what one is called, such as pi",
        group="devices and their link",
        often=True,
    )
    draft: str = option("0.5b", "size of the draft model on them", metavar="SIZE", often=True)
    link: str = option("wifi-good", "their link to the server, such as ethernet or lte", often=True)
    target: str = option(
        "dense-8b", "the target model, such as llama3.1 or dense-32b", group="the server", often=True
    )
    weight_bits: float | None = option(
        None,
        "bits of each weight of the target; none = 16, or 4 where 16 do not fit in memory",
        low=1,
        high=32,
        metavar="BITS",
    )
    accelerator: str = option(
        "",
        "what the target runs on, such as rtx-4090, mac-mini or 2xL40S; default: a table of all there are",
        often=True,
    )
    drafter: str = option(
        MODEL,
        "what drafts beside the target: model, the devices' draft model, or a draft head, whose size and speed are "
        "derived from the target's sizes",
        choices=(MODEL, *KINDS),
    )
    context: int = option(
        1024,
        "tokens that a conversation holds in KV memory",
        low=1,
        metavar="N",
        group="the users",
        often=True,
    )
    users: int = option(
        0, "users who ask at the same time; 0 = show 1, 4 and 16", low=0, metavar="N", often=True
    )
    pace: float | None = option(
        None,
        "tokens/s that every user is promised; none = how many users are held at 10, 20 and 30",
        low=0.01,
        metavar="R",
        often=True,
    )
    acceptance: str = option(
        "",
        f"share of draft tokens accepted at each position, or a task: {told()}; default: as recorded with SmolLM2",
        metavar="A|TASK",
        check=check_acceptance,
        group="the drafts",
        often=True,
    )
    hierarchy: bool = option(
        False,
        "plan a chain instead: which models on devices, hubs between them and the server, and in the cloud draft for "
        "each other, and in blocks of how many tokens",
        group="hubs between the devices and the server",
        often=True,
    )
    hub: str = option("agx-orin", "profile of the hub's accelerator")
    hub_model: str = option("draft-3b", "shape of the hub's model, see --target", metavar="SHAPE")
    hub_weight_bits: float = option(
        4.0, "bits of each weight of the hub's model", low=1, high=32, metavar="BITS"
    )
    hub_link: str = option(
        "wan-80",
        "profile of the link from the hub to the server, or its round trip in ms; --link is then that of the devices "
        "to their hub",
        metavar="LINK|MS",
        check=check_hub_link,
    )
    answer: int = option(
        0,
        "tokens of an answer, for the start and the end of each; 0 = so many that these do not count",
        low=0,
        high=100_000,
        metavar="N",
    )
    hub_acceptance: float | None = option(
        None,
        "share of the hub's tokens that the target accepts at each position; goes with --acceptance; none = as "
        "recorded with the tiny family's three models",
        low=0,
        high=MOST,
        metavar="A",
    )
    draft_acceptance: float | None = option(
        None,
        "share of the device's tokens that the hub accepts at each position; none = as follows from the other two, if "
        "models agree like the tiny family's, or as recorded",
        low=0,
        high=MOST,
        metavar="A",
    )
    accelerator_usd_hour: float | None = option(
        None,
        "price of an accelerator for one hour; none = its profile's",
        low=0,
        high=MAX_USD,
        metavar="USD",
        group="prices",
    )
    map: str = option(
        "",
        "also draw where which mode holds the most users",
        metavar="FILE.png|svg",
        group="output",
        often=True,
    )
    curve: str = option(
        "",
        "also draw what faster reading costs, in money and energy; the numbers go to FILE.json",
        metavar="FILE.png|svg",
    )
    kwh_usd: float = option(
        0.0, "with --curve: price of the devices' power", low=0, high=MAX_USD, metavar="USD"
    )
    gb_usd: float = option(
        0.0, "with --curve: price of a gigabyte of traffic", low=0, high=MAX_USD, metavar="USD"
    )
    json: bool = option(False, "print JSON", often=True)

    @property
    def promised(self) -> float:
        """Tokens/s, where one pace is needed."""
        return self.pace or PACES[0]


@dataclass(frozen=True)
class ReportConfig:
    """Where results are read and where the page is written."""

    folder: str = option("docs/benchmarks", "folder with the results as JSON", metavar="FOLDER")
    out: str = option("docs/benchmarks/report.html", "file to write", metavar="FILE")
