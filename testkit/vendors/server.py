"""A simulated vendor in a child process."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testkit.servers.process import Server, ServerFailedError

_ROOT = Path(__file__).resolve().parents[2]


class VendorServer(Server):
    """A vendor of ``testkit.vendors`` on a loopback port. Facts end with the process.

    Args:
        vendor: name of the package.
        options: for the package's ``simulator``.
    """

    package = "pos-gateway"

    def __init__(self, vendor: str, **options: Any) -> None:
        super().__init__()
        self._vendor, self._options = vendor, options

    @property
    def url(self) -> str:
        """The merchants' ``base_url``."""
        return f"http://127.0.0.1:{self.port}"

    def facts(self) -> Any:
        """The vendor's ``facts``."""
        return self._call("GET", "facts")["facts"]

    def wait(self, is_met: Callable[[Any], bool]) -> Any:
        """The facts as soon as they meet the condition. Raises ServerFailedError after a minute."""
        after = -1
        while True:
            found = self._call("GET", f"facts?after={after}")
            if is_met(found["facts"]):
                return found["facts"]
            if found["version"] == after:
                raise ServerFailedError(f"{self._vendor} never met the condition: {found}")
            after = found["version"]

    def knobs(self, **values: Any) -> None:
        """Set knobs."""
        self._call("POST", "knobs", values)

    def webhooks(self, **values: Any) -> None:
        """Set fields of the subscription: see ``Webhooks``."""
        self._call("POST", "webhooks", values)

    def act(self, name: str, **arguments: Any) -> Any:
        """Do an act of the vendor's, or ``advance(seconds)``, or ``trouble``: see ``Trouble``."""
        return self._call("POST", name, arguments)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(f"{self.url}/_/{path}", content, method=method)
        try:
            with opener.open(request) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from None

    def _prepare(self) -> None:
        pass  # the command has all options

    def _command(self) -> Sequence[str | Path]:
        options = json.dumps(self._options)
        module = "testkit.vendors.serving"
        return [sys.executable, "-P", "-m", module, self._vendor, str(self.port), options]

    def _environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(_ROOT)}

    def _answers(self) -> bool:
        return bool(self._call("GET", "facts"))
