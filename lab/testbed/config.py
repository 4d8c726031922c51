"""Options of `opensled demo` and `plan`, and their defaults."""

from dataclasses import dataclass

from lab.testbed.emulation.draft_head import KINDS
from lab.testbed.planner.hub_link import hub_rtt_s
from lab.testbed.planner.objective import MAX_USD
from lab.testbed.planner.task_acceptance import MOST, rates_of, told
from opensled.cli.config import option

PACES = (10.0, 20.0, 30.0)  # tokens/s; a quick reader, twice and three times that
MODEL = "model"  # drafter of a target: the draft model on the devices; the other choices are kinds of heads


@dataclass(frozen=True)
class DemoConfig:
    """A server and devices on this machine."""

    model: str = option(
        "auto",
        "target model: smollm2 (downloaded once) or the bundled tiny; auto: smollm2, or tiny if the download fails",
        choices=("auto", "smollm2", "tiny"),
    )
    max_tokens: int = option(64, "maximum length of an answer, in tokens", low=1, metavar="N")
    prompts: int = option(4, "number of prompts for each device, with tiny", low=1, metavar="N")
    draft_length: int = option(
        0, "maximum draft length in tokens, with tiny; 0 = the server's hint", low=0, metavar="K"
    )
    engine: str = option(
        "torch", "engine of the server; llamacpp works with tiny only", choices=("torch", "llamacpp")
    )
    mtls: bool = option(
        False, "require certificates of server and devices, and tokens of devices; works with tiny only"
    )
    vision: bool = option(
        False,
        "ask the bundled vision model tiny-vision about drawn scenes; the answers show the tokens that the device "
        "drafted",
    )
    json: bool = option(False, "print the figures as JSON")


@dataclass(frozen=True)
class PlanConfig:
    """Devices, their link, a target, a pace for the users, and prices."""

    hardware: str = option(
        "",
        "machines in words: 'a DGX Spark and three MacBooks'",
        positional=True,
        optional=True,
        metavar="WORDS",
        group="devices and their link",
    )
    devices: str = option(
        "orin-nano-super",
        "kind of the devices: a profile (opensled profile list) or a common name, for example pi",
        often=True,
    )
    draft: str = option("0.5b", "size of the draft model on the devices", metavar="SIZE", often=True)
    link: str = option("wifi-good", "link to the server, for example ethernet or lte", often=True)
    target: str = option(
        "dense-8b", "target model, for example llama3.1 or dense-32b", group="server", often=True
    )
    weight_bits: float | None = option(
        None,
        "bits for each weight of the target; none = 16, or 4 if 16 do not fit in memory",
        low=1,
        high=32,
        metavar="BITS",
    )
    accelerator: str = option(
        "",
        "hardware of the target, for example rtx-4090, mac-mini or 2xL40S; default: a table of all profiles",
        often=True,
    )
    server_drafter: str = option(
        MODEL,
        "drafter beside the target: model = the draft model of the devices; or a kind of draft head, "
        "whose size and speed follow from the target",
        choices=(MODEL, *KINDS),
    )
    context: int = option(
        1024, "tokens of one conversation in KV memory", low=1, metavar="N", group="users", often=True
    )
    users: int = option(0, "number of concurrent users; 0 = show 1, 4 and 16", low=0, metavar="N", often=True)
    pace: float | None = option(
        None,
        "minimum tokens/s of every user; none = show how many users can be served at 10, 20 and 30",
        low=0.01,
        metavar="R",
        often=True,
    )
    acceptance: str = option(
        "",
        f"acceptance: the share of draft tokens accepted at each position, or a task: {told()}; default: as recorded "
        "with SmolLM2",
        metavar="A|TASK",
        check=rates_of,
        group="drafts",
        often=True,
    )
    hierarchy: bool = option(
        False,
        "plan a chain instead: models on devices, on hubs and in the cloud that draft for each other, with the length "
        "of their blocks",
        group="hubs between devices and server",
        often=True,
    )
    hub: str = option("agx-orin", "profile of the hub's accelerator")
    hub_model: str = option("draft-3b", "size of the hub's model, given like --target", metavar="SHAPE")
    hub_weight_bits: float = option(
        4.0, "bits for each weight of the hub's model", low=1, high=32, metavar="BITS"
    )
    hub_link: str = option(
        "wan-80",
        "profile of the link from the hub to the server, or its round-trip time in ms; --link is then the link from "
        "the devices to the hub",
        metavar="LINK|MS",
        check=hub_rtt_s,
    )
    answer: int = option(
        0,
        "length of an answer, in tokens, to account for its start and end; 0 = so long that these do not matter",
        low=0,
        high=100_000,
        metavar="N",
    )
    hub_acceptance: float | None = option(
        None,
        "share of the hub's tokens that the target accepts at each position; needs --acceptance; none = as recorded "
        "with the three models of the tiny family",
        low=0,
        high=MOST,
        metavar="A",
    )
    draft_acceptance: float | None = option(
        None,
        "share of the device's tokens that the hub accepts at each position; none = derived from the other two, as if "
        "the models agreed like those of the tiny family, or as recorded",
        low=0,
        high=MOST,
        metavar="A",
    )
    accelerator_usd_hour: float | None = option(
        None,
        "price of one accelerator for one hour; none = the price in its profile",
        low=0,
        high=MAX_USD,
        metavar="USD",
        group="prices",
    )
    map: str = option(
        "",
        "also draw a map of the mode that serves the most users",
        metavar="FILE.png|svg",
        group="output",
        often=True,
    )
    curve: str = option(
        "",
        "also draw the cost of a faster pace, in money and energy; the numbers go to FILE.json",
        metavar="FILE.png|svg",
    )
    kwh_usd: float = option(
        0.0, "with --curve: price of one kWh used by the devices", low=0, high=MAX_USD, metavar="USD"
    )
    gb_usd: float = option(
        0.0, "with --curve: price of one gigabyte of traffic", low=0, high=MAX_USD, metavar="USD"
    )
    json: bool = option(False, "print JSON", often=True)

    @property
    def promised(self) -> float:
        """Tokens/s, where one pace is needed."""
        return self.pace or PACES[0]
