"""Addresses allowed for a merchant's POS: public addresses, and networks opened by the operator.

A merchant's URL is untrusted input. Without a guard, the URL could make the gateway call its own
neighbours (server-side request forgery): a metadata service, a database, a cluster's API.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from pos_gateway.runtime.addresses import WEB_PORTS, Address, Network, is_public
from pos_gateway.transport.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Guard:
    """The allowed networks and ports. The defaults are for production."""

    #: Allow everything: for development and tests only.
    allow_all: bool = False
    #: Networks opened by the operator beside the public internet, for POSes on the premises, with
    #: plain HTTP allowed.
    networks: tuple[Network, ...] = ()
    ports: frozenset[int] = WEB_PORTS

    def check_url(self, scheme: str, host: str, port: int) -> None:
        """Refuse a wrong port or scheme, whatever the address. Raises Misconfigured."""
        if self.allow_all:
            return
        if port not in self.ports:
            raise Misconfigured(
                "security",
                f"port {port} of {host} is not among those that a POS may have: "
                f"{', '.join(map(str, sorted(self.ports)))}",
            )
        if scheme != "https" and not self.networks:
            raise Misconfigured("security", f"{host} is to be spoken to in plain HTTP, not https")

    def check(self, host: str, addresses: Iterable[str], *, plain: bool) -> None:
        """Refuse a host if any address is forbidden, whatever the rest.

        Args:
            host: for the message.
            addresses: all addresses of the host's name.
            plain: without TLS.

        Raises:
            Misconfigured: names the address.
        """
        if self.allow_all:
            return
        for text in addresses:
            address = _parsed(text)
            opened = any(address in network for network in self.networks)
            if not opened and not is_public(address):
                raise Misconfigured("security", f"{host} is at {text}, which is not public")
            if not opened and plain:
                raise Misconfigured("security", f"{host} is to be spoken to in plain HTTP")


def _parsed(text: str) -> Address:
    # A zone ("fe80::1%eth0") is not part of the address: the bare address is link-local, too.
    return ip_address(text.partition("%")[0])
