"""Names of merchants' hosts: a look-up that hangs, or a hundred, keeps nobody else waiting.

gevent's own way is a pool of ten native threads: ten look-ups that hang stop everybody's. Here
each is a green thread's over c-ares, there is one for a name at a time, and what was found is
served while it is looked up anew.
"""

import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf
from typing import Any

from pos_gateway.runtime.green import green
from pos_gateway.transport.errors import NotSent

#: Addresses in the order in which they are to be tried.
Addresses = tuple[tuple[socket.AddressFamily, str], ...]
LookUp = Callable[[str], Addresses]

#: Seconds that an answer is served as it is, and for so long altogether while it is looked up
#: anew in the background: a POS moves seldom, and a resolver fails oftener.
FRESH, STALE = 30.0, 600.0
#: Seconds for which a name that was not found is not asked for again.
NEGATIVE = 5.0
#: Names that are remembered, and look-ups under way at once.
NAMES, UNDER_WAY = 20_000, 500
#: Addresses of one name that are tried.
MOST = 8


@dataclass(slots=True)
class _Entry:
    """What is known of a name."""

    at: float
    addresses: Addresses = ()
    error: str = ""
    #: When it was looked up anew in vain.
    failed_at: float = -inf


class Resolver:
    """Addresses by name. Safe from green threads.

    Args:
        look_up: asks for a name and blocks; raises OSError or UnicodeError.
        now: seconds of a clock that never jumps.
    """

    def __init__(
        self, look_up: LookUp | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._now = now
        self._known: OrderedDict[str, _Entry] = OrderedDict()
        self._under_way: dict[str, Any] = {}

    def resolve(self, host: str, timeout: float) -> Addresses:
        """The host's addresses.

        Raises:
            NotSent: it has none, or they are not known within so many seconds.
        """
        try:
            literal = ip_address(host)
        except ValueError:
            pass
        else:
            return ((_FAMILIES[literal.version], host),)
        entry = self._entry(host)
        if entry is None:
            entry = self._wait(host, timeout)
        if entry.error:
            raise NotSent("dns", f"cannot resolve {host}: {entry.error}")
        return entry.addresses

    def _entry(self, host: str) -> _Entry | None:
        """What is known and good enough; what is not so fresh is looked up anew beside it."""
        entry = self._known.get(host)
        if entry is None:
            return None
        age = self._now() - entry.at
        if entry.error:
            return entry if age <= NEGATIVE else None
        if age <= FRESH:
            return entry
        if age > STALE or not green():
            return None
        if self._now() - entry.failed_at > NEGATIVE and len(self._under_way) < UNDER_WAY:
            self._begin(host)
        return entry

    def _wait(self, host: str, timeout: float) -> _Entry:
        if not green():
            return self._ask(host)
        if host not in self._under_way and len(self._under_way) >= UNDER_WAY:
            raise NotSent("dns", f"cannot resolve {host}: too many look-ups are under way")
        looking = self._begin(host)
        looking.join(timeout)
        if not looking.ready():
            raise NotSent("dns", f"cannot resolve {host}: no answer within {timeout:.3g} s")
        entry: _Entry | None = looking.value
        if entry is None:  # a mistake of ours; it has been printed
            raise NotSent("dns", f"cannot resolve {host}: the look-up broke off")
        return entry

    def _begin(self, host: str) -> Any:
        import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

        looking = self._under_way.get(host)
        if looking is None:
            looking = self._under_way[host] = gevent.spawn(self._ask, host)
            looking.rawlink(lambda _: self._under_way.pop(host, None))
        return looking

    def _ask(self, host: str) -> _Entry:
        """Look a name up, and remember. A failure does not displace what is still good to serve."""
        if self._look_up is None:
            self._look_up = _ares() if green() else _system
        try:
            entry = _Entry(self._now(), self._look_up(host)[:MOST])
        except (OSError, UnicodeError) as error:
            entry = _Entry(self._now(), error=str(error) or type(error).__name__)
        before = self._known.get(host)
        if entry.error and before is not None and not before.error:
            before.failed_at = self._now()
            if before.failed_at - before.at <= STALE:
                return before
        return self._keep(host, entry)

    def _keep(self, host: str, entry: _Entry) -> _Entry:
        self._known[host] = entry
        self._known.move_to_end(host)
        if len(self._known) > NAMES:
            self._known.popitem(last=False)
        return entry


_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def _system(host: str) -> Addresses:
    """The system's resolver, which blocks the thread."""
    return _distinct(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))


def _ares() -> LookUp:
    """c-ares on this thread's loop: no native threads, so no number of them to run out of."""
    from gevent.resolver.ares import Resolver as Ares  # noqa: PLC0415

    ares = Ares()
    return lambda host: _distinct(ares.getaddrinfo(host, None, 0, socket.SOCK_STREAM))


def _distinct(found: list[Any]) -> Addresses:
    return tuple(dict.fromkeys((family, address[0]) for family, _, _, _, address in found))
