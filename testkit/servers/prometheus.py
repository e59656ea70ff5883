"""A Prometheus server of our own."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from testkit.patience import PATIENCE
from testkit.servers.process import Server, program


class Prometheus(Server):
    """One server that scrapes what its configuration (YAML) says."""

    package: ClassVar[str] = "prometheus"

    def __init__(self, configuration: str) -> None:
        super().__init__()
        self._configuration = configuration
        #: The moment that queries are about (Unix time); None: the present one.
        self.at: float | None = None

    @property
    def url(self) -> str:
        """Its web interface and API."""
        return f"http://127.0.0.1:{self.port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The value of an expression ``at`` the moment: one `{"metric", "value"}` for each series.

        Raises an OSError for one that it does not understand.
        """
        asked = {"query": expression} | ({"time": str(self.at)} if self.at else {})
        found = self._ask(f"/api/v1/query?{urllib.parse.urlencode(asked)}")
        result: list[dict[str, Any]] = found["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """The rules that it goes by, with the result of their last evaluation."""
        return [rule for group in self._ask("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _prepare(self) -> None:
        (self.folder / "prometheus.yml").write_text(self._configuration)

    def _command(self) -> Sequence[str | Path]:
        return [
            program("prometheus", self.package),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def _answers(self) -> bool:
        self._get("/-/ready")  # anything but 200 raises an OSError
        return True

    def _ask(self, path: str) -> dict[str, Any]:
        reply = json.loads(self._get(path))
        assert reply["status"] == "success", reply
        data: dict[str, Any] = reply["data"]
        return data

    def _get(self, path: str) -> bytes:
        # No proxy of the environment stands between us and loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url + path, timeout=PATIENCE) as reply:
            body: bytes = reply.read()
            return body
