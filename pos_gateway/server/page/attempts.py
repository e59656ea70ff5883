"""How often a client may fail to log in. Guessing a token never succeeds; this bounds its cost."""

import ipaddress
from collections import OrderedDict

#: Failures that may come at once, and seconds for each further one.
BURST, SECONDS = 10, 6.0
#: Clients that are known at once; the one that failed longest ago is forgotten.
MAX_CLIENTS = 10_000


class Attempts:
    """Counts failures by the client's address. For the event loop."""

    def __init__(self) -> None:
        #: When each client's failures are forgotten, the last to fail last.
        self._until: OrderedDict[str, float] = OrderedDict()

    def wait(self, client: str, now: float) -> float:
        """Seconds until this client may try again; 0.0: now."""
        until = self._until.get(_network(client), now)
        return max(0.0, until - now - (BURST - 1) * SECONDS)

    def failed(self, client: str, now: float) -> None:
        """Count a failure; an attempt counts as one until it has succeeded."""
        network = _network(client)
        self._until[network] = max(now, self._until.pop(network, now)) + SECONDS
        if len(self._until) > MAX_CLIENTS:
            self._until.popitem(last=False)

    def succeeded(self, client: str) -> None:
        """What was counted as a failure is none."""
        network = _network(client)
        if network in self._until:
            self._until[network] -= SECONDS


def _network(client: str) -> str:
    """A client has all addresses of its /64."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if address.version == 4:
        return client
    return str(ipaddress.ip_network((address, 64), strict=False))
