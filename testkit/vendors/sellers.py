"""Several sellers of one vendor, on a loopback port of this process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from testkit.patience import PATIENCE
from testkit.vendors.http import VendorRequest
from testkit.vendors.serving import VendorHTTPServer, handler
from testkit.vendors.way import Carried, Way

#: Seconds between two looks at whether a server was closed.
_POLL = 0.05


class Sellers:
    """Ways to sellers by the access token of a request, as at a vendor with one address for all.

    A test reads and changes a seller's facts under ``changed``, which each request notifies.
    """

    def __init__(self) -> None:
        self.ways: dict[str, Way] = {}
        self.changed = threading.Condition()

    def carried(self, request: VendorRequest) -> Carried:
        given = request.headers.get("authorization") or request.headers.get("x-access-token", "")
        token = given.removeprefix("Bearer ")
        with self.changed:
            carried = self.ways[token].carry(request)
            self.changed.notify_all()
        return carried

    def control(self, method: str, target: str, body: bytes) -> object:
        raise KeyError(f"{method} {target}: sellers of the same process have no control channel")

    def wait(self, is_met: Callable[[], bool]) -> None:
        """Wait until the sellers' facts meet the condition."""
        with self.changed:
            assert self.changed.wait_for(is_met, PATIENCE), "the sellers never met the condition"

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve from threads; yields the merchants' ``base_url``."""
        with VendorHTTPServer(("127.0.0.1", 0), handler(self)) as server:
            thread = threading.Thread(target=server.serve_forever, args=(_POLL,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()
