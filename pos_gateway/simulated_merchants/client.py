"""How tests and benchmarks start the simulated merchants, direct them and ask for the truth.

Only the standard library, and a connection of its own for each question: it works the same in a
process that gevent has patched and in one that it has not, from any thread or green thread.
"""

import json
import os
import ssl
import subprocess
import sys
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

_ROOT = Path(__file__).resolve().parents[2]

#: How long the server may take over an answer beyond the time that it was asked to wait.
_PATIENCE = 30.0


class MerchantsClient:
    """Speaks to simulated merchants that run somewhere."""

    def __init__(self, host: str, port: int, *, tls: bool = False) -> None:
        self.host = host
        self.port = port
        self._tls = tls

    def base_url(self, merchant_id: str) -> str:
        """The merchant's API, as a row of the gateway's merchants wants it."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{self.host}:{self.port}/m/{quote(merchant_id, safe='')}"

    def summary(self) -> dict[str, Any]:
        """The totals: requests, creates, statuses, concurrency, connections, by profile."""
        return self._dict("GET", "/_/summary")

    def merchant(self, merchant_id: str) -> dict[str, Any]:
        """One merchant's counts."""
        return self._dict("GET", f"/_/merchants/{quote(merchant_id, safe='')}")

    def merchants(self) -> dict[str, dict[str, Any]]:
        """The counts of every merchant that something has come to."""
        return self._dict("GET", "/_/merchants")

    def orders(self, merchant_id: str | None = None) -> list[dict[str, Any]]:
        """Every order that was sent, or one merchant's."""
        query = "" if merchant_id is None else "?" + urlencode({"merchant": merchant_id})
        return self._list("GET", f"/_/orders{query}")

    def order(self, merchant_id: str, order_id: str) -> dict[str, Any] | None:
        """One order, or None if the merchant never heard of it."""
        path = f"/_/merchants/{quote(merchant_id, safe='')}/orders/{quote(order_id, safe='')}"
        status, value = self._ask("GET", path)
        if status == 404:
            return None
        assert isinstance(value, dict)
        return value

    def doubled(self) -> list[dict[str, Any]]:
        """The orders that were made more than once."""
        return self._list("GET", "/_/doubled")

    def timeline(self, since: float = 0.0) -> dict[str, list[tuple[float, int]]]:
        """Orders made, by group: pairs of a tenth of a second's wall-clock time and how many."""
        return self._by_group("timeline", since)

    def levels(self, since: float = 0.0) -> dict[str, list[tuple[float, int]]]:
        """Requests in flight, by group: a tenth of a second's wall-clock time and its last level.

        A tenth without a change is left out: the level is that of the one before.
        """
        return self._by_group("levels", since)

    def arrivals(self) -> list[tuple[str, str, float]]:
        """Merchant, order and the wall-clock time at which its first POST arrived."""
        columns = self._dict("GET", "/_/arrivals")
        return list(
            zip(columns["merchants"], columns["order_ids"], columns["arrived_at"], strict=True)
        )

    def feed(self, since: int = 0) -> dict[str, Any]:
        """What has happened to orders from that number on; see ``pos_gateway/simulated_merchants/feed.py``.

        ``entries`` are lists of merchant, order, creates and wall-clock time, ``next`` is where to
        go on, and ``missed`` how many were not there any more.
        """
        return self._dict("GET", f"/_/feed?since={since}")

    def profile(self, merchant_id: str, profile: object, *, release: bool = False) -> None:
        """Give a merchant, or those of a prefix such as ``slow-*``, another profile.

        ``profile`` is a name or a profile's JSON; ``release`` treats by it the calls that hang.
        """
        path = f"/_/merchants/{quote(merchant_id, safe='')}/profile"
        self._dict("PUT", path, {"profile": profile, "release": release})

    def wait_until(
        self,
        *,
        merchant_id: str | None = None,
        requests: int | None = None,
        creates: int | None = None,
        lookups: int | None = None,
        cancels: int | None = None,
        in_flight: int | None = None,
        idle: bool = False,
        timeout: float = 120.0,
    ) -> dict[str, Any]:
        """Return the counts once each is at least as given, and with ``idle`` nothing in flight.

        The counts are those of all merchants, or of one. The server answers when it happens;
        raises TimeoutError with the counts when it has not happened in time.
        """
        wanted: dict[str, object] = {
            "merchant": merchant_id,
            "requests": requests,
            "creates": creates,
            "lookups": lookups,
            "cancels": cancels,
            "in_flight": in_flight,
            "idle": 1 if idle else None,
        }
        query = {name: value for name, value in wanted.items() if value is not None}
        path = "/_/wait?" + urlencode({**query, "timeout": timeout})
        counts = self._dict("GET", path, patience=timeout + _PATIENCE)
        if not counts.pop("reached"):
            raise TimeoutError(f"not within {timeout} s: {query}; the counts are {counts}")
        return counts

    def reset(self) -> None:
        """Begin anew, as after a start; who still waits for a reply is disconnected."""
        self._dict("POST", "/_/reset")

    def _by_group(self, what: str, since: float) -> dict[str, list[tuple[float, int]]]:
        groups = self._dict("GET", f"/_/{what}?since={since!r}")["groups"]
        return {
            group: sorted((float(at), int(number)) for at, number in buckets)
            for group, buckets in groups.items()
        }

    def _dict(
        self, method: str, path: str, body: object = None, *, patience: float = _PATIENCE
    ) -> dict[str, Any]:
        status, value = self._ask(method, path, body, patience=patience)
        if status != 200 or not isinstance(value, dict):
            raise ValueError(_complaint(method, path, status, value))
        return value

    def _list(self, method: str, path: str) -> list[dict[str, Any]]:
        status, value = self._ask(method, path)
        if status != 200 or not isinstance(value, list):
            raise ValueError(_complaint(method, path, status, value))
        return value

    def _ask(
        self, method: str, path: str, body: object = None, *, patience: float = _PATIENCE
    ) -> tuple[int, object]:
        connection = self._connect(patience)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def _connect(self, patience: float) -> HTTPConnection:
        if not self._tls:
            return HTTPConnection(self.host, self.port, timeout=patience)
        # What is asked is a test server about a test; its certificate is the gateway's to check.
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
        return HTTPSConnection(self.host, self.port, timeout=patience, context=unchecked)


def _complaint(method: str, path: str, status: int, value: object) -> str:
    match value:
        case {"error": {"message": message}}:
            return f"{method} {path}: {status}: {message}"
    return f"{method} {path}: {status}: {value!r}"


class SimulatedMerchants(MerchantsClient):
    """Simulated merchants in a process of their own, while the context is open."""

    def __init__(
        self,
        *,
        seed: int = 0,
        scenario: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        keep_bodies: bool = False,
        near: int | None = None,
    ) -> None:
        super().__init__(host, port, tls=tls_cert is not None)
        options: dict[str, object] = {
            "--host": host,
            "--port": port,
            "--seed": seed,
            "--near": near,
            "--scenario": scenario and scenario.absolute(),
            "--tls-cert": tls_cert and tls_cert.absolute(),
            "--tls-key": tls_key and tls_key.absolute(),
        }
        self._arguments = ["--keep-bodies"] if keep_bodies else []
        for name, value in options.items():
            if value is not None:
                self._arguments += [name, str(value)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> "SimulatedMerchants":
        """Start the process; returns when it listens, raises RuntimeError if it does not."""
        command = [
            sys.executable,
            "-m",
            "pos_gateway.simulated_merchants",
            "--parent",
            str(os.getpid()),
        ]
        self._process = subprocess.Popen(
            command + self._arguments, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self.stop()
            raise RuntimeError(f"the simulated merchants did not start: exit status {status}")
        self.port = int(json.loads(line)["port"])
        return self

    def stop(self) -> int:
        """Stop the process and return its exit status; harmless when it has stopped before."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            status = process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return status

    def __enter__(self) -> "SimulatedMerchants":
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
