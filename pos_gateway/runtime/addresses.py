"""IP addresses: public or not, and parsing of network and port lists."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: Ports of POS APIs on the public internet.
WEB_PORTS = frozenset({443, 8443})

#: IANA's special-purpose registry for IPv4 (RFC 6890 and later), multicast and reserved networks.
#: Python's ``is_global`` lacks the relay and tunnel ranges.
_SPECIAL_IPV4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, with the clouds' metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]

_SPECIAL_IPV6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an embedded IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
]

#: The public internet: networks, each with its exceptions. For IPv6, the allocated global unicast
#: range; IPv4-mapped, NAT64, unique local and link-local addresses and multicast are outside.
PUBLIC: Mapping[Network, Sequence[Network]] = {
    IPv4Network("0.0.0.0/0"): _SPECIAL_IPV4,
    IPv6Network("2000::/3"): _SPECIAL_IPV6,
}


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, and embeds no other address."""
    return any(
        address in network and not any(address in special for special in specials)
        for network, specials in PUBLIC.items()
    )


def networks(text: str) -> tuple[Network, ...]:
    """Networks from ``10.1.0.0/16, fd00::/8``. Raises ValueError, naming the invalid part."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def ports(text: str) -> frozenset[int]:
    """Ports from ``443, 8443``. Raises ValueError, naming the invalid part."""
    numbers = [part.strip() for part in text.split(",") if part.strip()]
    for number in numbers:
        if not (number.isdecimal() and 0 < int(number) < 65536):
            raise ValueError(f"{number!r} is not a port")
    return frozenset(map(int, numbers))
