"""One server process: started, waited for, killed, paused, and never outliving its parent."""

import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from testkit.patience import PATIENCE

#: Processes of pytest that have ports of their own; more of them share.
_PROCESSES = 8


class ServerMissingError(RuntimeError):
    """Raised when a server's program is not installed."""


class ServerFailedError(RuntimeError):
    """Raised when a server ended, or did not answer, where it should have."""


class Server(ABC):
    """What the servers share: a folder, a port and one process that can be started again.

    `stop()` and `kill()` keep port and data, so that `start()` brings the same server back;
    `close()`, and the end of the `with` block, throw the data away.

    Start it from a thread that lives as long as the server must: Linux ties a child to the thread
    that made it.
    """

    #: Debian's package that the program comes from.
    package: ClassVar[str]
    #: What ends it, and all that it started, at the end or when its parent dies.
    death_signal: ClassVar[str] = "KILL"
    #: The user to run it as when we are root; None runs it as we are.
    user: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.port = 0
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Where its data, configuration and log are."""
        if self._folder is None:
            raise ServerFailedError(f"{type(self).__name__} has not been started.")
        return self._folder

    @property
    def pid(self) -> int:
        """The server's own process."""
        return self._running().pid

    def start(self) -> None:
        """Have it running, whatever became of it, with the data it had, and answering."""
        if self._process is not None and self._process.poll() is None:
            self.resume()
            return
        self._end(signal.SIGKILL)  # what one that ended by itself has left
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"{type(self).__name__.lower()}-"))
            if account := self._account():
                shutil.chown(self._folder, account, account)
            self.port = free_port()
            self._prepare()
        self._process = self._spawn(self._command(), stdin=self._stdin())
        self._wait_for(self._answers, self._process, "did not answer")

    def stop(self) -> None:
        """Ask it to stop in good order, and wait until it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: its connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a frozen one go on."""
        self._running().send_signal(signal.SIGCONT)
        self._paused = False

    def close(self) -> None:
        """End it and remove its data."""
        self._end(signal.Signals[f"SIG{self.death_signal}"])
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @abstractmethod
    def _prepare(self) -> None:
        """Write what the first start needs into the folder."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it takes requests; may raise OSError as long as it does not."""

    def _environment(self) -> Mapping[str, str]:
        return {}

    def _stdin(self) -> int:
        return subprocess.DEVNULL

    def _account(self) -> str | None:
        return self.user if os.geteuid() == 0 else None

    def _tied(self, command: Sequence[str | Path]) -> list[str]:
        """The command, made to die with this process and to run as its user."""
        tie = ["setpriv", "--pdeathsig", self.death_signal]
        if account := self._account():
            tie += ["--reuid", account, "--regid", account, "--init-groups"]
        return [*tie, "--", *map(str, command)]

    def _spawn(
        self, command: Sequence[str | Path], *, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        with self._log().open("ab") as log:
            return subprocess.Popen(
                self._tied(command),
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._clean_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle
            )

    def _run(self, command: Sequence[str | Path]) -> str:
        """Run a program that ends by itself, and return what it printed."""
        done = subprocess.run(
            self._tied(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=self.folder,
            env=self._clean_environment(),
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            output = (done.stdout + done.stderr).decode(errors="replace")
            raise ServerFailedError(f"`{' '.join(map(str, command))}` failed:\n{output}")
        return done.stdout.decode()

    def _clean_environment(self) -> dict[str, str]:
        """Nothing of the caller's environment may configure a server of ours."""
        path = os.environ.get("PATH", os.defpath)
        return {
            "PATH": f"{path}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            **self._environment(),
        }

    def _log(self) -> Path:
        return self.folder / "output.log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailedError(f"{type(self).__name__} is not running.")
        return self._process

    def _wait_for(
        self, ready: Callable[[], bool], process: subprocess.Popen[bytes], complaint: str
    ) -> None:
        deadline, pause = time.monotonic() + PATIENCE, 0.001
        while True:
            if process.poll() is not None:
                raise self._failure("ended")
            try:
                if ready():
                    return
            except OSError:
                pass  # not listening yet
            if time.monotonic() > deadline:
                raise self._failure(f"{complaint} within {PATIENCE:.0f} s")
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    def _failure(self, what: str) -> ServerFailedError:
        tail = self._log().read_text(errors="replace")[-3000:]
        return ServerFailedError(f"{type(self).__name__} {what}. Its last output:\n{tail}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process, self._paused = self._process, None, False
        if process is not None:
            end(process, how)


def end(process: subprocess.Popen[Any], how: signal.Signals = signal.SIGKILL) -> None:
    """Signal a child, wait for its end, and kill what it leaves behind."""
    with ExitStack() as stack:
        started = [stack.enter_context(_pidfd(pid)) for pid in _descendants(process.pid)]
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a paused one hears nothing but SIGKILL
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            for left in filter(None, started):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(left, signal.SIGKILL)
                select.select([left], [], [], PATIENCE)  # readable once it has ended
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()


def _descendants(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):  # it may end while we look
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)


@contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """A handle on a process that stays its own when the number is given away again."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def program(name: str, package: str, *folders: Path) -> Path:
    """The full path of a server's program; Debian keeps some of them off the PATH."""
    search = os.pathsep.join([*map(str, folders), os.environ.get("PATH", ""), "/usr/sbin:/usr/bin"])
    if found := shutil.which(name, path=search):
        return Path(found)
    raise ServerMissingError(
        f"{name} is not installed: install Debian's package {package}, or run `make test`, "
        "which installs what the tests need."
    )


def free_port() -> int:
    """A loopback port that no process uses, from below the range that outgoing connections take.

    From inside that range, a client that retries while its server is down could be given the very
    port that the server needs again. A port is free until its server binds it, and again while that
    is down: each of pytest's processes has ports of its own, and comes to the same one late.
    """
    while True:
        port = next(_ports())
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@cache
def _ports() -> Iterator[int]:
    """This process's ports, again and again."""
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    all_ = range(20_000, 32_768)[own % _PROCESSES :: _PROCESSES]
    begin = random.SystemRandom().randrange(len(all_))
    return cycle([*all_[begin:], *all_[:begin]])
