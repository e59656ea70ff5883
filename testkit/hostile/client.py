"""How a load test starts the catalogue's peers: in a process that does not outlive its block."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from testkit.servers.process import end

_ROOT = Path(__file__).resolve().parents[2]


class HostilePeers:
    """A peer for each behaviour of the catalogue, while the block lasts."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="pos-gateway-hostile-")
        self._process: subprocess.Popen[bytes] | None = None
        #: Where each listens, in the catalogue's order.
        self.urls: list[str] = []

    @property
    def ca_file(self) -> str:
        """The authority that has issued the certificates of those that have a good one."""
        return str(Path(self._folder.name) / "ca.pem")

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "testkit.hostile", self._folder.name]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the hostile peers ended before they listened")
        self.urls = json.loads(line)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._folder.cleanup()
