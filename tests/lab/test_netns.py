"""Links by the kernel, namespaces and shares of a machine; those that need root are skipped without. The whole check
is `make netns-check`.
"""

import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from hw_profiles import catalog
from lab.testbed import namespaces, netem, netns, netns_hub, netns_machines
from lab.testbed.namespaces import MachineShare, cable, inside, limited, namespace
from lab.testbed.processes import Process
from opensled.core.errors import OpenSledError, UsageError

HERE = Path("/proc/thread-self/ns/net")  # its link names the namespace
AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)
NAME = f"osledtest{os.getpid()}"


def of(words: list[str], key: str) -> str:
    return words[words.index(key) + 1]


def test_netem_gets_delay_losses_and_rate_of_the_profile():
    link = catalog.link("lte-bad")
    up, down = (netem.commands(link, "uplink", direction) for direction in (True, False))
    assert up[:6] == ["qdisc", "replace", "dev", "uplink", "root", "netem"]
    assert (of(up, "rate"), of(down, "rate")) == ("1mbit", "5mbit")
    assert of(up, "distribution") == netem.TABLE and up[up.index("distribution") - 1] == "25%"
    turns_bad, turns_good = (float(word.rstrip("%")) / 100 for word in up[up.index("gemodel") + 1 :][:2])
    assert turns_bad / (turns_bad + turns_good) == pytest.approx(link.loss.typical, rel=0.01)
    assert 1 / turns_good == pytest.approx(link.burst, rel=0.01)


def test_netem_is_told_of_no_losses_where_there_are_none():
    assert "loss" not in netem.commands(catalog.link("ethernet"), "uplink", True)


@pytest.mark.parametrize("name", catalog.names("links"))
def test_netem_draws_the_round_trips_of_the_profile_from_its_table(name):
    """As the kernel does it: a uniform entry of the table times the deviation, over 8192, plus the delay."""
    link = catalog.link(name)
    words = netem.commands(link, "uplink", True)
    delay = words.index("delay")
    fixed, deviation = (float(word.removesuffix("ms")) for word in words[delay + 1 : delay + 3])
    entries = [int(word) for row in netem.table(link).splitlines()[1:] for word in row.split()]
    assert len(entries) == 4096 and entries[0] >= 0 and entries[-1] <= 32767 and entries == sorted(entries)
    dice = random.Random(1)
    draws = [fixed + deviation * dice.choice(entries) / 8192 for _ in range(100_000)]
    cuts = statistics.quantiles([one + other for one, other in zip(draws[::2], draws[1::2])], n=100)
    assert cuts[49] == pytest.approx(link.rtt_p50_ms.typical, rel=0.03)
    assert cuts[98] == pytest.approx(link.rtt_p99_ms.typical, rel=0.06)


@AS_ROOT
def test_tc_understands_the_commands_whatever_the_kernel_can():
    with namespace(f"{NAME}-tc") as space, inside(space):
        for name in catalog.names("links"):
            try:
                netem.apply(catalog.link(name), "lo", True)
            except OpenSledError as refusal:
                # The kernel's word; tc's own would be "What is ...?", "Illegal ..." or "Cannot find ...".
                assert "Specified qdisc kind is unknown" in str(refusal)


@AS_ROOT
def test_netem_says_why_it_is_missing_or_works():
    reason = netem.missing()
    with namespace(f"{NAME}-em") as space, inside(space):
        link = catalog.link("5g")
        if not reason:
            netem.apply(link, "lo", True)
            shown = subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True)
            assert "netem" in shown.stdout
        else:
            with pytest.raises(OpenSledError, match="5g"):
                netem.apply(link, "lo", True)


def test_netem_without_its_tools_names_the_package(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    assert "iproute2" in netem.missing()


@AS_ROOT
def test_machines_reach_each_other_by_cable_and_nobody_else():
    with namespace(f"{NAME}-a") as a, namespace(f"{NAME}-b") as b:
        cable(a, "to-b", "10.77.0.1/30", b, "uplink", "10.77.0.2/30")
        with inside(a):
            server = socket.create_server(("10.77.0.1", 0))
        with server:
            address = server.getsockname()
            with inside(b), socket.create_connection(address, timeout=5) as client:
                assert client.getpeername() == address
            with pytest.raises(OSError), socket.create_connection(address, timeout=0.2):
                pass  # from the host itself there is no way in
    assert not list(namespaces.FOLDER.glob(f"{NAME}-*"))


@AS_ROOT
def test_a_process_started_inside_stays_there_and_this_thread_comes_back():
    host = HERE.readlink()
    with namespace(f"{NAME}-p") as space:
        with inside(space):
            there = HERE.readlink()
            flags = ("--profile", "ethernet", "--to", "127.0.0.1:1")
            relay = Process(flags, isolated=True, module="lab.testbed.link_relay")
        with relay:
            relay.wait_ready()
            assert Path(f"/proc/{relay.process.pid}/ns/net").readlink() == there != host
    assert HERE.readlink() == host


def test_without_root_one_is_told_of_the_alternative(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="docker-compose"):
        namespaces.require()


@AS_ROOT
def test_a_share_of_the_machine_holds_or_says_why_not():
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    with limited(f"{NAME}-share", MachineShare(0.25, 1.5)) as held:
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            held.add(process.pid)
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
            assert (f"{NAME}-share" in groups) == bool(held.folders)
            assert ("control group: 0.25 CPUs, 1.5 GiB" in held.how) == bool(held.folders)
            process.stdin.close()
    assert not any(folder.exists() for folder in held.folders)


def test_a_share_is_written_as_each_version_of_control_groups_wants_it(tmp_path):
    for folder in ("one/cpu", "one/memory", "two"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "two" / "cgroup.controllers").write_text("cpu memory")
    share = MachineShare(0.5, 2.0)
    with (
        limited("device", share, tmp_path / "one") as first,
        limited("device", share, tmp_path / "two") as second,
    ):
        assert [folder.relative_to(tmp_path).as_posix() for folder in (*first.folders, *second.folders)] == [
            "one/cpu/device",
            "one/memory/device",
            "two/device",
        ]
        assert (first.folders[0] / "cpu.cfs_quota_us").read_text() == "50000"
        assert (first.folders[1] / "memory.limit_in_bytes").read_text() == str(2 * 2**30)
        assert (second.folders[0] / "cpu.max").read_text() == "50000 100000"
        assert (second.folders[0] / "memory.max").read_text() == str(2 * 2**30)


def test_where_no_control_group_can_be_made_one_core_and_the_address_space_are_limited(tmp_path):
    code = "import os, sys, resource; sys.stdin.read(1); print(resource.getrlimit(resource.RLIMIT_AS)[0], "
    code += "len(os.sched_getaffinity(0)))"
    command = [sys.executable, "-c", code]
    with limited("device", MachineShare(0.5, 2.0), tmp_path / "nowhere") as held:
        assert "no control group" in held.how
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            held.add(process.pid)
            assert process.communicate("x")[0].split() == [str(2 * 2**30), "1"]


def test_devices_share_the_machine_in_proportion_to_their_draft_speeds():
    shares = {name: netns_machines.share_of(name) for name in (*netns_machines.DEVICES, netns_hub.HUB)}
    assert shares[netns_machines.WHOLE_CPU].cpus == 1.0
    speeds = {name: catalog.device(name).draft("0.5b").decode_per_s.typical for name in shares}
    assert sorted(shares, key=lambda name: shares[name].cpus) == sorted(shares, key=lambda name: speeds[name])
    homes = netns_hub.HOME_DEVICES
    assert all(catalog.link(link) for link in (*netns_machines.DEVICES.values(), *homes.values()))
    assert list(homes) == list(netns_machines.DEVICES) and len(homes) < netns_hub.FIRST_FALLBACK
    assert set(netns_hub.FALLBACKS) < set(homes) and all(map(catalog.link, netns_hub.FALLBACKS.values()))


def test_what_is_left_behind_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(netns, "FOLDER", tmp_path / "netns")
    monkeypatch.setattr(netns, "CGROUPS", tmp_path / "cgroup")
    left = [tmp_path / "netns" / "osled7-pi-4", tmp_path / "cgroup" / "cpu" / "osled7-pi-5"]
    for folder in left:
        folder.mkdir(parents=True)
    assert netns._left_behind("osled7") == [str(folder) for folder in left]
    assert netns._left_behind("osled8") == []


def test_the_check_wants_something_to_break(capsys):
    assert netns.main(["--prompts", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err
