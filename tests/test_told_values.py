"""The pages' values, messages, flags and commands are those of the code."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import tomllib

from edge_client.drafters import DRAFTERS
from opensled.cli import config
from opensled.cli.config import options
from opensled.cli.main import CONFIGS, VERBS, _parser
from opensled.net.address import NEAR_NAMES
from tests.layers import ROOMS
from verify_server.options.registries import SERVER_DRAFTERS

ROOT = Path(__file__).parents[1]
SPELLED = dict(
    enumerate(["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"])
)
# PAGE: a sentence, {} for each value and … for what stands between => MODULE: the values
TOLD = """
draft-length: after {} tokens before the first hint => edge_client.lengths.base: UNADVISED
draft-length: their ratio from {} tokens of each on => opensled.drafting.status: ENOUGH
draft-length: at the latest after {} answers => scheduler.goodput.probes: RESTED
draft-length: `battery-floor` ({} %) => edge_client.device.config: DeviceConfig.battery_floor
drafters: the last {} to {} tokens before => opensled.drafting.ngrams: SHORTEST, LONGEST
drafters: again in 1/{} of the time => scheduler.goodput.probes: PAUSE
drafters: up to {} tokens that tables guess => edge_client.drafters.accelerated: MAX_GUESSES
drafters: ({} of the larger vocabulary => edge_client.drafters.vocabulary: MOSTLY
drafters: {} s to connect, {} s and more … {} s between => edge_client.draft_servers.http_stream: CONNECT_S, FIRST_S, BETWEEN_S
drafters: {} tokens for a request => edge_client.draft_servers.http_stream: STREAM_TOKENS
drafters: in {} seconds, as measured, and {} at least => edge_client.drafters.window: READING_S, LEAST
drafters: at most {} tokens and depth {} => opensled.drafting.growth: MAX_NODES, DEEPEST
drafters: `--min-gain` ({}) => lab.training.adapting.config: AdaptConfig.min_gain
drafters: (the newest {} of a tenant) => adapt.handout.draft_store: KEPT
hardware: tells a gain once {} draft tokens were => edge_client.doctor.drafting_gain: ENOUGH
operations: {} attempts without a byte => opensled.models.download: ATTEMPTS
operations: up to {} million parameters once more in 16 bits, if => opensled.models.widened: MAX_BYTES // 2 // 10**6
operations: up to {} million … fewer than {} % => verify_server.engine.llamacpp.agreement: MAX_BYTES // 2 // 10**6, 100 * LEAST
operations: memory for {} full contexts => verify_server.engine.memory_plan: CONTEXTS
operations: (engine llamacpp: {}) => verify_server.engine.llamacpp.llama_settings: CONTEXTS
operations: KV cache of up to {} positions => edge_client.drafters.llamacpp: CONTEXT_CAP
operations: KV has blocks of {} tokens => verify_server.engine.torch.kv_memory: BLOCK_SIZE
operations: client-calls = {} max-draft = {} => verify_server.options.limits_config: LimitsConfig.client_calls, LimitsConfig.max_draft
operations: asks again every {} seconds => edge_client.link.server_watch: EVERY_S
operations: for up to {} seconds a token => scheduler.goodput.step_budget: BACKGROUND_S
operations: `relay` wait up to {} minutes => edge_client.link.loading_server: LONGEST_S / 60
operations: `--drain SECONDS` ({}) => verify_server.options.serve_config: ServeConfig.drain
operations: lets answers finish for {} s => http_api.server: GRACE
operations: silent for {} s … up to {} of the => edge_client.offline.modes: Offline.quiet, Offline.most
operations: seconds ({}; with `local-only` {}) => edge_client.offline.modes: RetryPolicy.give_up, LOCAL_GIVE_UP
operations: `heartbeat` seconds ({}; => http_api.backend: HEARTBEAT
operations: up to {} s (a server's `http-wait`), {} at a time => http_api.waiting_room: WAIT_SECONDS, MOST
operations: Of one place in the code come at most {} warnings in {} s => opensled.process.logs: _Stderr.many, _Stderr.period
operations: never take one place of {}, => verify_server.admission.admission_rules: BACKGROUND
operations: no turn for {} s => opensled.net.probes: STUCK_S
operations: at most {} pairs => opensled.metrics.answer_counts: MOST
protocol: up to {} seconds, … for {} seconds to open => edge_client.link.remote: RetryPolicy.slowest_retry, RetryPolicy.first_open
protocol: {} KiB, and for each position of the context {} bytes => verify_server.access.client_limits: FIXED_BYTES >> 10, TEXT_BYTES
protocol: More than {} moves => edge_client.link.moves: MAX_MOVES
protocol: At {} unread messages => verify_server.round.outbox: MAX_UNREAD
security: The server's lasts {} years … after {}, … lasts {}. => home.desk.home: LIFETIME // YEAR, RENEWED_AFTER // YEAR, AUTHORITY_LIFETIME // YEAR
security: ({} guesses, {} begun runs) … {} connections of an address (a /64 in IPv6), {} silent … {} s in all => home.desk.desk: MAX_GUESSES, MAX_RUNS, MAX_OF_ADDRESS, MAX_CONNECTIONS, TOTAL_SECONDS
security: The code** ends after {} minutes => home.desk.config: PairConfig.minutes
security: `keep-text-mb` ({}) … `keep-text-days` ({}) => verify_server.options.serve_config: ServeConfig.keep_text_mb, ServeConfig.keep_text_days
security: and {} texts, the oldest => adapt.kept.kept_store: MAX_TEXTS
security: the first {} tokens that the server wrote => adapt.kept.text_trace: MAX_TOKENS
security: the {} likeliest tokens => adapt.kept.kept_store: TOP
security: more than {} s to arrive => http_api.http_connection: PATIENCE
security: idle for {} s => http_api.server: KEEP_ALIVE
security: {} MiB, {} MiB of a chat => http_api.bodies: MAX_BODY >> 20, MAX_CHAT_BODY >> 20
security: {} a second | closed … | {}; {} MiB; {} s; {}, with bursts => verify_server.access.client_limits: REFUSALS[0], CALLS[0], BYTES[0] >> 20, READING[0], IDLE_MESSAGES[0]
security: watchers | {}, => http_api.page.views: MAX_WATCHERS
security: one in {} of its tokens … has {} drafts … or {} other names => verify_server.round.budget: PROBE, EVIDENCE, MAX_DEVICES
security: {} MB of a tenant, {} MB in all => verify_server.text.guide: TENANT_BYTES >> 20, ALL_BYTES >> 20
security: {} schemas, {} levels => opensled.text.held_schema: MAX_NODES, MAX_DEPTH
security: {} KiB a line, {} MiB a stream, {} MiB a document, {} KiB of => edge_client.draft_servers.http_stream: MAX_LINE >> 10, MAX_STREAM >> 20, MAX_DOCUMENT >> 20, MAX_HEAD >> 10
security: {} s where it starts cold … {} to {} s => edge_client.drafters.outage: LOAD_S, FIRST_PAUSE, LONGEST_PAUSE
security: files | {}; {} MiB each, {} MiB … {} pixels a side, {} million => opensled.core.images: MAX_IMAGES, MAX_IMAGE_BYTES >> 20, MAX_PROMPT_IMAGE_BYTES >> 20, MAX_SIDE, MAX_PIXELS // 10**6
security: {} reopenings without a token => edge_client.link.remote: MAX_FRUITLESS
security: {} files, {} GiB in all => adapt.shelf.draft_manifest: MAX_FILES, MAX_BYTES >> 30
security: transfers | {} of a tenant, … {} in all; {} minutes; {} MB/s => adapt.handout.hand_out: MAX_OF_CLIENT, MAX_TRANSFERS, SECONDS / 60, RATE / 10**6
"""  # noqa: E501


@pytest.mark.parametrize("row", TOLD.strip().splitlines())
def test_a_page_tells_the_value_of_the_code(row):
    told, of_code = row.split(" => ")
    page, sentence = told.split(": ", 1)
    module, values = of_code.split(": ", 1)
    held = eval(f"({values},)", vars(import_module(module)))
    forms = iter([f"({value:,g}|{SPELLED.get(value, 'no number')})" for value in held])
    pattern = re.escape(sentence).replace("\\ …\\ ", ".*?")
    pattern = re.sub(r"\\\{\\\}", lambda _: next(forms), pattern)
    text = re.sub(r"<!--.*?-->", "", (ROOT / f"docs/{page}.md").read_text())
    assert re.search(pattern, " ".join(text.split())), held


def test_the_lists_that_the_pages_repeat_are_whole():
    readme = (ROOT / "README.md").read_text()
    tests = set(re.findall(r"^((?:test-|vllm-test)[a-z]*):", (ROOT / "Makefile").read_text(), re.M))
    assert tests and tests <= set(re.findall(r"[\w-]+", readme.partition("make test ")[2].partition("\n")[0]))
    drafters = (ROOT / "docs/drafters.md").read_text()
    for head, registry in (("| name |", DRAFTERS), ("| `serve --server-drafter` |", SERVER_DRAFTERS)):
        rows = drafters.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
        named = {name for row in rows for name in re.findall(r"`([a-z]+)[:`]", row.split(" | ")[0])}
        assert named - {"auto", "vllm"} == {*registry.entries}  # vllm:NAME is not ours
    (roomed,) = re.findall(r"^(.*) have rooms, and no file", (ROOT / "docs/structure.md").read_text(), re.M)
    assert set(re.findall(r"`(\w+)`", roomed)) == set(ROOMS)
    outside = {file.name for package in ROOMS for file in (ROOT / package).glob("*.py")}
    assert outside <= {"__init__.py", "__main__.py"}
    extras = (
        (ROOT / "docs/install.md").read_text().partition("| extra |")[2].partition("\n\n")[0].splitlines()
    )
    named = [set(re.findall(r"`([\w-]+)`", row.split(" | ")[0])) for row in extras[2:]]
    assert set().union(*named) == extras_of("pyproject.toml")
    assert set().union(*named[:6]) == extras_of("deploy/edge/pyproject.toml") and "adapt" in named[5]


def extras_of(file: str) -> set[str]:
    return {*tomllib.loads((ROOT / file).read_text())["project"]["optional-dependencies"]}


def test_what_no_configuration_file_may_set_is_named():
    all_options = [option for verb in VERBS for option in options(CONFIGS.get(verb))]
    typed = {option.name.replace("_", "-") for option in all_options if option.typed}
    told = (ROOT / "docs/operations.md").read_text().partition("config.toml` (not")[2].partition(")")[0]
    assert set(re.findall(r"`--([\w-]+)`", told)) == typed


def test_ends_of_names_of_this_machine_are_those_that_only_networks_give():
    told = (ROOT / "docs/security.md").read_text().partition("an end that only networks give, such as ")[2]
    ends = re.findall(r"`(?:\.TAILNET)?(\.[a-z.]+)`", told.partition(", with TLS")[0])
    assert len(ends) == 3 and set(ends) <= set(NEAR_NAMES)


# -- messages, flags and commands -------------------------------------------------------------------------------


TROUBLES = (ROOT / "docs/troubleshooting.md").read_text()
PAGE = "\n".join(
    [TROUBLES, *((ROOT / "docs" / name).read_text() for name in ("cluster.md", "operations.md"))]
)
PACKAGES = ("opensled", "http_api", "edge_client", "verify_server", "scheduler", "hw_profiles", "home")


def templates():
    """Every text in the sources; what a formatted one fills in is an ellipsis."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"%[dsg]", "…", node.value)


def quoted():
    """The messages of the troubleshooting tables: at the beginning of a row, in one pair of backticks, with a blank."""
    cells = re.findall(r"^\| `([^`]+)`", TROUBLES, re.M)
    return [cell for cell in cells if " " in cell]


def test_every_message_quoted_is_a_real_one():
    texts = list(templates())
    assert len(quoted()) > 50
    for message in quoted():
        parts = [re.escape(part.strip("… ")) for part in message.split("…")]
        pattern = re.compile(".*".join(part for part in parts if part), re.S)
        assert any(pattern.search(text) for text in texts), message


def commands():
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if "bin/opensled " in line]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_parses(words):
    _, verb, *arguments = words
    assert _parser(verb, config.options(CONFIGS.get(verb))).parse_args(arguments)


def test_every_flag_named_exists():
    known = {flag for verb in VERBS for item in config.options(CONFIGS.get(verb)) for flag in item.flags}
    # Of pip, systemd and others; of Docker and kubectl; of Ray; of vLLM
    foreign = """--no-index --find-links --platform --only-binary --no-deps --batch --offline --now --version
    --kill-whom --user --build-arg --cap-drop --detach --env --file --from-file --gpus --publish
    --read-only --restart --security-opt --shm-size --stop-timeout --tag --tmpfs --mount --name
    --time --volume --head --address --port --node-ip-address --include-dashboard --generate
    --opensled --shutdown-timeout --network --kiosk --cacert --force-reinstall"""
    pages = "\n".join([PAGE, *((ROOT / name).read_text() for name in ("README.md", "docs/home.md"))])
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", pages)) - set(foreign.split()) <= known
