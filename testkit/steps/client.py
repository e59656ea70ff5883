"""Merchants with steps in a process of their own, their knobs, and the truth about an order."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from testkit.patience import PATIENCE
from testkit.servers.process import Server
from testkit.steps.pos import Act, Manner, Truth

_ROOT = Path(__file__).resolve().parents[2]


class StepMerchants(Server):
    """Any number of merchants on a port; a question opens a connection."""

    package = "python3"

    def base_url(self, merchant_id: str) -> str:
        """The merchant's API. Any id has one."""
        return f"http://127.0.0.1:{self.port}/m/{quote(merchant_id, safe='')}"

    def treat(self, merchant_id: str, act: Act, **manner: Any) -> None:
        """Treat requests for an act from now on as the fields of ``Manner`` say."""
        Manner(**manner)
        self._ask("PUT", f"{quote(merchant_id, safe='')}/acts/{act}", manner)

    def set(
        self,
        merchant_id: str,
        *,
        adds: int = 0,
        keys_kept: float | None = None,
        undecided: Iterable[Act] = (),
    ) -> None:
        """Set the attributes of ``StepPos``; the defaults are those of the start."""
        said = {"adds": adds, "keys_kept": keys_kept, "undecided": list(undecided)}
        self._ask("PUT", quote(merchant_id, safe=""), said)

    def truth(self, merchant_id: str, order_id: str) -> Truth:
        """The facts of our order at the merchant's POS."""
        return Truth(**self._ask("GET", _path(merchant_id, order_id)))

    def wait_for(self, merchant_id: str, order_id: str, **counts: int) -> Truth:
        """The truth once each count is reached: of facts by their names, of requests by their acts.

        Raises:
            TimeoutError: not within ``PATIENCE`` seconds.
        """
        return Truth(**self._ask("GET", f"{_path(merchant_id, order_id)}/wait?{urlencode(counts)}"))

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, f"/_/{path}", json.dumps(body).encode())
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"{method} {path}: {response.status}: {text.decode()}")
        return json.loads(text)

    def _prepare(self) -> None:
        pass  # the command has the port

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "testkit.steps", str(self.port)]

    def _environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(_ROOT)}

    def _answers(self) -> bool:
        self._ask("GET", "ready")
        return True


def _path(merchant_id: str, order_id: str) -> str:
    return f"{quote(merchant_id, safe='')}/{quote(order_id, safe='')}"
