"""The workers of one kind, and what CPU they use."""

import psutil

from testkit.faults.site import Site, Worker


class Crew:
    """Workers that are started with the same flags."""

    def __init__(self, site: Site, *flags: str, app: str) -> None:
        self._site, self._flags, self._app = site, flags, app
        self._workers: list[Worker] = []
        self._spent = 0.0

    @classmethod
    def old(cls, site: Site, processes: int) -> "Crew":
        """Synchronous ones, which take from both queues: from the canary's what is left."""
        return cls(site, "-P", "prefork", "-c", str(processes), app="pos_gateway")

    @classmethod
    def new(cls, site: Site) -> "Crew":
        """Green ones on the canary's queue."""
        return cls(site, "-Q", "orders.canary", app="pos_gateway.gcelery")

    def __len__(self) -> int:
        return len(self._workers)

    def add(self) -> None:
        """Start one more; returns at once."""
        self._workers.append(self._site.start_worker(*self._flags, app=self._app))

    def kill(self) -> None:
        """End all of them at once."""
        self._spent = self.cpu()
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
        self._workers.clear()

    def cpu(self) -> float:
        """Seconds of CPU that all of them have used, their child processes included."""
        return self._spent + sum(_cpu(worker.pid) for worker in self._workers)


def _cpu(pid: int) -> float:
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)
