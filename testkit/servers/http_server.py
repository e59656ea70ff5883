"""A ``pos-gateway serve`` of our own."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from testkit.servers.process import Server


class HttpServer(Server):
    """The HTTP server on a broker and a database, with the operations page."""

    package = "pos-gateway"

    def __init__(
        self, broker_url: str, database_url: str, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self._settings = {
            "POS_GATEWAY_BROKER_URL": broker_url,
            "POS_GATEWAY_DATABASE_URL": database_url,
            "POS_GATEWAY_METRICS_PORT": "0",
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        """Its origin."""
        return f"http://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        pass  # the environment says it all

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, "-P", "-m", "pos_gateway", "serve", "--port", str(self.port)]

    def _environment(self) -> Mapping[str, str]:
        path = os.environ.get("PYTHONPATH")
        return {**self._settings, **({"PYTHONPATH": path} if path else {})}

    def _answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/readyz", timeout=5):
                return True
        except urllib.error.HTTPError:
            return False  # it serves, and the broker or the database is not there yet
