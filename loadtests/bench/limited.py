"""A worker with less CPU than a core: in a control group with a quota, as a pod with a limit is."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import Worker

#: Microseconds in which a group may use its quota, as Kubernetes sets it.
PERIOD = 100_000
#: Where control groups of version 1 and version 2 are.
_VERSION_1, _VERSION_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class Quota:
    """A control group of its own, with a part of a core, while its block lasts.

    Args:
        cores: the CPU that its processes may use together.
        version_1: where control groups of version 1 would be.
        version_2: where those of version 2 would be.
    """

    def __init__(
        self, cores: float, *, version_1: Path = _VERSION_1, version_2: Path = _VERSION_2
    ) -> None:
        quota = round(PERIOD * cores)
        if (version_1 / "cpu.cfs_quota_us").exists():
            top = version_1
            self._limits = {"cpu.cfs_period_us": str(PERIOD), "cpu.cfs_quota_us": str(quota)}
        else:
            top = version_2
            self._limits = {"cpu.max": f"{quota} {PERIOD}"}
        self._folder = top / f"pos-gateway-bench-{os.getpid()}"

    @property
    def processes(self) -> Path:
        """A process that writes its number here, or 0, is in the group, with all that it starts."""
        return self._folder / "cgroup.procs"

    def make(self) -> None:
        """Make the group.

        Raises:
            InvalidRunError: this user may not.
        """
        try:
            self._folder.mkdir(exist_ok=True)
            for name, limit in self._limits.items():
                (self._folder / name).write_text(limit)
        except OSError as error:
            raise InvalidRunError(
                f"small-core needs a control group with a CPU quota, which root may make: {error}"
            ) from error

    def remove(self) -> None:
        """Remove the group, which no process is in any more."""
        with suppress(OSError):
            self._folder.rmdir()


class Limited(Worker):
    """A worker whose processes may use ``cores`` together, on any core.

    Args:
        command: what follows ``python``.
        environment: environment variables, added to a neutral environment.
        folder: where its output goes.
        cores: the CPU that it may use.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        cores: float,
    ) -> None:
        super().__init__(command, environment, folder, is_alone=False)
        self._quota = Quota(cores)
        #: What it has printed, once it has ended.
        self.printed: list[str] = []

    def start(self) -> None:
        """Start it; returns at once."""
        self._quota.make()
        super().start()

    def kill(self) -> None:
        """End it, and keep what it has printed. Idempotent."""
        super().kill()
        self._quota.remove()
        if self._log.exists():
            self.printed = self._log.read_text(errors="replace").splitlines()

    def _program(self) -> list[str]:
        join = f'echo 0 > {self._quota.processes}; exec "$@"'
        return ["sh", "-c", join, "sh", *super()._program()]
