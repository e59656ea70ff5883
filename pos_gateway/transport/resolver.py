"""Names of merchants' hosts: a look-up that hangs delays only its own merchant.

gevent's default is a pool of ten native threads: ten hanging look-ups stop all the rest. Here each
look-up has a green thread over c-ares, single flight per name, and a stale answer is served during
the refresh. Without green threads each look-up has a native thread: the system's resolver has no
time limit.
"""

import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Any

from pos_gateway.runtime.green import green
from pos_gateway.transport.errors import NotSent

#: Addresses in the order to try.
Addresses = tuple[tuple[socket.AddressFamily, str], ...]
LookUp = Callable[[str], Addresses]

#: Seconds for which an answer is fresh, and for which an answer is served at all, with refreshes in
#: the background: a POS moves seldom, and a resolver fails oftener.
FRESH, STALE = 30.0, 600.0
#: Seconds for which a failed look-up is not repeated.
NEGATIVE = 5.0
#: Maximum cached names, and maximum look-ups in flight; a background refresh begins only below half
#: of the maximum look-ups.
NAMES, MAX_LOOK_UPS = 20_000, 500
#: Maximum addresses of a name to try.
MAX_ADDRESSES = 8
#: Where the machine's name servers are written.
NAME_SERVERS = "/etc/resolv.conf"


@dataclass(slots=True)
class _CachedAddresses:
    """A cached answer."""

    at: float
    addresses: Addresses = ()
    error: str = ""
    #: When the last refresh failed, by the resolver's clock.
    failed_at: float = -inf


class Resolver:
    """Addresses by name. Safe from green threads.

    Args:
        look_up: resolves a name, blocking; raises OSError or UnicodeError.
        now: a monotonic clock, in seconds.
    """

    def __init__(
        self, look_up: LookUp | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._now = now
        self._known: OrderedDict[str, _CachedAddresses] = OrderedDict()
        self._look_ups: dict[str, Any] = {}

    def resolve(self, host: str, timeout: float) -> Addresses:
        """The host's addresses.

        Raises:
            NotSent: the host has no address, or no answer came within ``timeout`` seconds.
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

    def _entry(self, host: str) -> _CachedAddresses | None:
        """The cached answer, if still servable; a stale answer is refreshed in the background."""
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
        is_due = self._now() - entry.failed_at > NEGATIVE
        if is_due and len(self._look_ups) < MAX_LOOK_UPS // 2:
            self._begin(host)
        return entry

    def _wait(self, host: str, timeout: float) -> _CachedAddresses:
        if host not in self._look_ups and len(self._look_ups) >= MAX_LOOK_UPS:
            raise NotSent("look_ups", f"cannot resolve {host}: too many look-ups are in flight")
        looking = self._begin(host)
        looking.join(timeout)
        if self._look_ups.get(host) is looking:
            raise NotSent("dns", f"cannot resolve {host}: no answer within {timeout:.3g} s")
        entry = self._known.get(host)
        if entry is None:  # a bug of ours; the thread printed the traceback
            raise NotSent("dns", f"cannot resolve {host}: the look-up broke off")
        return entry

    def _begin(self, host: str) -> Any:
        looking = self._look_ups.get(host)
        if looking is None:
            looking = self._look_ups[host] = _thread(self._ask, host)
            try:
                looking.start()
            except RuntimeError as error:  # this machine is out of threads
                del self._look_ups[host]
                raise NotSent("local", f"cannot resolve {host}: {error}") from error
        return looking

    def _ask(self, host: str) -> None:
        try:
            self._refresh(host)
        finally:
            self._look_ups.pop(host, None)

    def _refresh(self, host: str) -> None:
        """Look a name up and cache the answer. After a failure a servable answer stays."""
        if self._look_up is None:
            self._look_up = _ares() if green() else _system
        try:
            entry = _CachedAddresses(self._now(), self._look_up(host)[:MAX_ADDRESSES])
        except (OSError, UnicodeError) as error:
            entry = _CachedAddresses(self._now(), error=str(error) or type(error).__name__)
        before = self._known.get(host)
        if entry.error and before is not None and not before.error:
            before.failed_at = self._now()
            if before.failed_at - before.at <= STALE:
                return
        self._known[host] = entry
        self._known.move_to_end(host)
        if len(self._known) > NAMES:
            self._known.popitem(last=False)


_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def _thread(do: Callable[[str], None], host: str) -> Any:
    """A thread like the process's threads, green or native; not started."""
    if not green():
        return threading.Thread(target=do, args=(host,), daemon=True)
    from gevent import Greenlet  # noqa: PLC0415  (only where gevent is in use)

    return Greenlet(do, host)


def _system(host: str) -> Addresses:
    """The system's resolver. Blocks the thread."""
    return _distinct(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))


def _ares() -> LookUp:
    """c-ares on the calling thread's loop: needs no native threads.

    c-ares reads the name servers once: after a change, as after a fork, gevent's resolver gets a new channel, and
    repeats the look-ups in flight there.
    """
    from gevent.resolver.ares import Resolver as Ares  # noqa: PLC0415

    known, ares = _written(), Ares()

    def look_up(host: str) -> Addresses:
        nonlocal known
        if (written := _written()) != known:
            before, ares.cares = ares.cares, ares.cares_class(ares.hub.loop, **ares.params)
            known = written
            ares.hub.loop.run_callback(before.destroy)
        return _distinct(ares.getaddrinfo(host, None, 0, socket.SOCK_STREAM))

    return look_up


def _written() -> tuple[int, int, int] | None:
    """Which version of the file with the name servers is there; None: no file."""
    try:
        file = Path(NAME_SERVERS).stat()
    except OSError:
        return None
    # The size: emptied, then written, in one tick of the file system's clock.
    return file.st_ino, file.st_mtime_ns, file.st_size


def _distinct(found: list[Any]) -> Addresses:
    return tuple(dict.fromkeys((family, address[0]) for family, _, _, _, address in found))
