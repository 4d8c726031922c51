"""The addresses of this machine: those of its network first, before those of bridges, tunnels and machines in it."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Any

from opensled.net.address import host_port, is_wildcard
from opensled.net.outward import SHARED

# Adapters that lead to containers, virtual machines or a far network, as systems and programs name them
INNER = re.compile(
    r"docker|br-(?!lan|wan)|bridge1\d\d|mpqemubr|virbr|veth|vnet|vmnet|vboxnet|lxc|lxd|incus|podman|nerdctl|cni|flannel|"
    r"cali|cilium|kube|nodelocal|weave|hassio|tun|tap|utun|wg|ppp|ipsec|vti|gre|sit|ip6tnl|zt|nordlynx|proton|ham\d|awdl|"
    r"llw|anpi|gif|stf|p2p|dummy|ifb|nebula|wt\d|gpd\d|feth|vmenet|ap\d|xfrm|l2tp|l4tbr|col\d|waydroid|anbox|rmnet|ccmni|"
    r"v4-|clat|vxlan|fw(br|ln|pr)\d|ipv6leak|pvpn|"
    r".*(?:vethernet|virtualbox|vmware|wireguard|tailscale|zerotier|hamachi|wintun|warp|netbird|vpn|zscaler|netextender|"
    r"nordlynx|pangp|_wg|\bvirtual\b|\bminiport\b|\bloopback\b|tunnel|\btap\d*\b|tun\d*$)",
    re.IGNORECASE,
)
NETS = Path("/sys/class/net")  # the adapters, where this is Linux
FLAGS = Path("/proc/net/if_inet6")  # of each IPv6 address, where this is Linux
ELSEWHERE = ("192.0.2.1", 9)  # an address of documentation (RFC 5737); nothing is sent there


def machine_addresses() -> list[str]:
    """The addresses of this machine, without IPv6 ones of one link: of its network, the one that leads out of it first,
    then of one link, of inner networks, of loopback; IPv4 before IPv6."""
    ranks = _ranks()
    return sorted(ranks, key=ranks.__getitem__)


def network_addresses() -> list[str]:
    """Those of them under which others of its network reach this machine; where it has none, the next best."""
    ranks, found = _ranks(), machine_addresses()
    return [address for address in found if ranks[address][:3] == ranks[found[0]][:3]]


def _ranks() -> dict[str, tuple[bool, ...]]:
    """The addresses of this machine, each with what speaks against it."""
    routed, passing = _routed(), _passing()
    try:
        import ifaddr
    except ImportError:
        return {routed or "127.0.0.1": (not routed, False, False)}
    ranks: dict[str, tuple[bool, ...]] = {}
    for adapter in ifaddr.get_adapters():
        inner = _is_inner(adapter)
        for each in adapter.ips:
            address = each.ip if isinstance(each.ip, str) else each.ip[0]
            known = ipaddress.ip_address(address)
            if known.version == 4 or not known.is_link_local:
                is_inner = inner or (known.version == 4 and known in SHARED)
                last = (known.version == 6, address != routed, known in passing)
                ranks.setdefault(address, (known.is_loopback, is_inner, known.is_link_local, *last))
    return ranks


def _is_inner(adapter: Any) -> bool:
    """Whether no cable and no radio is behind it, as its names tell, the system, or its network of one address alone,
    which tunnels have."""
    net = NETS / str(adapter.name)
    if (net / "device").exists():  # also a hotspot of one's own
        return False
    if any(INNER.match(str(name)) for name in (adapter.name, adapter.nice_name)):
        return True
    if net.exists() and any(NETS.glob("*/device")):  # in a container none has hardware
        return not _has_hardware(net)
    return any(isinstance(each.ip, str) and getattr(each, "network_prefix", 0) == 32 for each in adapter.ips)


def _has_hardware(net: Path) -> bool:
    """Whether an adapter has hardware, or one below it, as of a bridge or a bond."""
    return (net / "device").exists() or any(map(_has_hardware, net.glob("lower_*")))


def best_host(listen: str) -> str:
    """The host by which others would best call a listener at `listen`."""
    return host_port(listen)[0] if not is_wildcard(listen) else machine_addresses()[0]


def _routed() -> str:
    """The address from which this machine calls hosts elsewhere; "" = it has no way there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _passing() -> set[object]:
    """The IPv6 addresses of this machine that it will soon change for others."""
    try:
        lines = [line.split() for line in FLAGS.read_text().splitlines()]
    except OSError:
        return set()
    # Flag 0x01: temporary (RFC 8981); 0x20: deprecated
    return {ipaddress.IPv6Address(int(line[0], 16)) for line in lines if int(line[4], 16) & 0x21}
