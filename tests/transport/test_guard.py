"""Which addresses the gateway sends to, judged by the packets that arrive."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import Any

import pytest

from pos_gateway.runtime.addresses import is_public, networks, ports
from pos_gateway.transport.errors import Misconfigured
from pos_gateway.transport.exchange import Request, Transport
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.resolver import Addresses, Resolver

Play = Callable[..., dict[str, Any]]

PUBLIC, PUBLIC_6 = "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"

SPECIAL_IPV4 = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    *("192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24"),
]
SPECIAL_IPV6 = [
    *("::/128", "::1/128", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64"),
    *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7"),
    *("fe80::/10", "fec0::/10", "ff00::/8", "::/96", "2620:4f:8000::/48"),
]
#: Addresses that a gateway in a cloud or a cluster must not send to.
INSIDE = [
    *("127.0.0.1", "169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.1.1", "100.100.100.200"),
]


def corners(network: str) -> list[str]:
    """The first address of a network, the last, and two between."""
    net = ip_network(network)
    size = net.num_addresses
    return [str(net[place]) for place in sorted({0, size // 3, size // 2, size - 1})]


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def spellings(address: str) -> Iterator[str]:
    """The ways to write an IPv4 address that some parser accepts."""
    number = int(IPv4Address(address))
    a, b, c, d = (int(part) for part in address.split("."))
    yield from (str(number), hex(number), f"0{number:o}", f"0X{number:X}")
    yield from (f"{a}.{b}.{(c << 8) | d}", f"{a}.{(b << 16) | (c << 8) | d}")
    yield from (f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"{a:#x}.{b:#x}.{c:#x}.{d:#x}")
    yield from (f"000{a:o}.{b}.{c}.{d}", f"{a:#06x}.{b}.0{c:o}.{d}", f"{address}.")
    yield "".join(chr(0xFF10 + int(each)) if each.isdigit() else each for each in address)
    yield address.replace(".", "\N{IDEOGRAPHIC FULL STOP}")
    yield "".join(f"%{ord(each):02x}" for each in address)
    disguises = (
        *(f"::ffff:{address}", f"::{address}", f"::ffff:0:{address}", f"64:ff9b::{address}"),
        *(
            f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1",
            f"::ffff:{number >> 16:x}:{number & 0xFFFF:x}",
        ),
        f"2001:0:{number >> 16:x}:{number & 0xFFFF:x}::1",
    )
    yield from (f"[{disguise}]" for disguise in disguises)


REFUSED = [
    *(in_url(each) for network in SPECIAL_IPV4 + SPECIAL_IPV6 for each in corners(network)),
    *(spelling for address in INSIDE for spelling in spellings(address)),
    *("localhost", "localhost.", "LOCALHOST", "[fe80::1%25lo]", "[::1%lo]", "ip6-localhost"),
    *(f"{PUBLIC}@127.0.0.1", f"127.0.0.1#@{PUBLIC}", f"{PUBLIC}\\@127.0.0.1", "127.0.0.1?.example"),
    *(f"{PUBLIC}:80@127.0.0.1", "127.0.0.1%2f", "127.0.0.1\t", "[::ffff:7f00:1]", "[0:0::1]"),
]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Sends to a URL where every address is this machine."""
    process = subprocess.Popen(
        [
            *("unshare", "--net", "--map-root-user"),
            *(sys.executable, "-m", "tests.transport.everywhere"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def play(url: str, **case: Any) -> dict[str, Any]:
        print(json.dumps({"url": url, **case}), file=process.stdin, flush=True)
        result: dict[str, Any] = json.loads(process.stdout.readline())
        return result

    yield play
    process.kill()
    process.communicate()


def test_the_listener_sees_allowed_connections(play: Play) -> None:
    assert play(f"https://{PUBLIC}/")["came"] == [f"{PUBLIC} 443"]
    assert play(f"https://[{PUBLIC_6}]:8443/")["came"] == [f"{PUBLIC_6} 8443"]
    named = play("https://pos.example/", names={"pos.example": [[PUBLIC]]})
    assert named["came"] == [f"{PUBLIC} 443"]


def test_there_are_many_spellings_of_refused_addresses() -> None:
    assert len(set(REFUSED)) >= 150


def test_no_spelling_of_an_internal_address_sends_a_packet_there(play: Play) -> None:
    seen = {
        host: result["came"] for host in REFUSED if (result := play(f"https://{host}/"))["came"]
    }
    assert seen == {}


@pytest.mark.parametrize("inside", [*INSIDE, "::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"])
def test_a_name_of_an_internal_address_is_refused_also_beside_a_public_one(
    play: Play, inside: str
) -> None:
    for found in ([inside], [PUBLIC, inside], [inside, PUBLIC_6]):
        result = play("https://pos.example/", names={"pos.example": [found]})
        assert result == {"came": [], "said": ["Misconfigured security"]}


@pytest.mark.parametrize("inside", INSIDE)
def test_dns_rebinding_is_refused(play: Play, inside: str) -> None:
    names = {"pos.example": [[PUBLIC], [inside], [PUBLIC]]}
    result = play("https://pos.example/", names=names, times=3)
    assert result["came"] == [f"{PUBLIC} 443"] * 2
    assert result["said"][1] == "Misconfigured security"


def test_plain_http_and_other_ports_are_refused(play: Play) -> None:
    for url in (f"http://{PUBLIC}/", f"http://{PUBLIC}:443/", f"https://{PUBLIC}:6379/"):
        assert play(url) == {"came": [], "said": ["Misconfigured security"]}


@pytest.mark.parametrize("url", ["http://pos.example:443/", "https://pos.example:6379/"])
def test_an_invalid_url_is_refused_before_a_look_up(url: str) -> None:
    looked_up: list[str] = []

    def look_up(host: str) -> Addresses:
        looked_up.append(host)
        return ()

    transport = Transport(guard=Guard(), resolver=Resolver(look_up))
    with pytest.raises(Misconfigured):
        transport.send(Request("GET", url), key="m", connections=1, seconds=5)
    assert looked_up == []


def test_only_the_networks_that_the_operator_opened_may_be_called(play: Play) -> None:
    opened = {"networks": "10.1.0.0/16, fd00:1::/32", "ports": "80, 443"}
    assert play("http://10.1.2.3/", **opened)["came"] == ["10.1.2.3 80"]
    assert play("https://[fd00:1::5]/", **opened)["came"] == ["fd00:1::5 443"]
    for url in (
        "http://10.2.0.1/",
        f"http://{PUBLIC}/",
        "https://[fd00:2::1]/",
        "https://[::ffff:10.1.2.3]/",
    ):
        assert play(url, **opened) == {"came": [], "said": ["Misconfigured security"]}


def test_unallocated_ipv6_is_not_public() -> None:
    given_out = IPv6Network("2000::/3")
    for block in range(0, 0x10000, 0x40):
        address = IPv6Address(block << 112 | 1)
        assert not is_public(address) or address in given_out


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "here", "10.0.0.0/8;fd00::/8"])
def test_invalid_networks_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"10|here"):
        networks(text)


@pytest.mark.parametrize("text", ["0", "65536", "-1", "https", "443;80", "4 43"])
def test_invalid_ports_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a port"):
        ports(text)
