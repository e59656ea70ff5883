"""Where a merchant's POS may be: public addresses, and networks that the operator has opened.

A merchant's URL is untrusted input. Without this, it could make the gateway call its own
neighbours (server-side request forgery): a metadata service, a database, a cluster's API.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from pos_gateway.runtime.addresses import WEB_PORTS, Address, Network, is_public
from pos_gateway.transport.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Guard:
    """What may be connected to. The defaults are for production."""

    #: Allow everything: for development and tests only.
    allow_all: bool = False
    #: Networks opened by the operator beside the public internet, for POSes on the premises. Plain
    #: HTTP is allowed there.
    networks: tuple[Network, ...] = ()
    ports: frozenset[int] = WEB_PORTS

    def check_url(self, scheme: str, host: str, port: int) -> None:
        """Refuse a URL that is wrong whatever its address. Raises Misconfigured."""
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
        """Refuse a host if any of its addresses is forbidden, whatever the others.

        Args:
            host: for the message.
            addresses: all that its name resolves to.
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
    # A zone ("fe80::1%eth0") is not part of the address, which is link-local without it.
    return ip_address(text.partition("%")[0])
