"""Jobs on few green threads: each is done once, in its turn, whatever becomes of the others."""

from functools import partial

import gevent
import pytest
from gevent.event import Event

from pos_gateway.worker.job_queue import JobQueue
from testkit.patience import PATIENCE


class Work:
    """Jobs that wait until they may go on."""

    def __init__(self) -> None:
        self.may_go_on = Event()
        self.begun: list[int] = []
        self.done: list[int] = []

    def do(self, number: int) -> None:
        self.begun.append(number)
        self.may_go_on.wait()
        self.done.append(number)

    def jobs(self, *numbers: int) -> list[partial[None]]:
        return [partial(self.do, number) for number in numbers]


def raises() -> None:
    raise ValueError("a job failed")


def test_jobs_begin_in_turn_and_few_at_a_time() -> None:
    work, queue = Work(), JobQueue(2)
    for job in work.jobs(*range(5)):
        queue.add(job)
    gevent.sleep(0)
    assert work.begun == [0, 1]
    queue.add_first(work.jobs(7, 8))
    assert not queue.join(0.001)
    work.may_go_on.set()
    assert queue.join(PATIENCE)
    assert work.begun == [0, 1, 7, 8, 2, 3, 4]
    queue.add(work.jobs(9)[0])  # after its green threads have ended
    assert queue.join(PATIENCE)
    assert sorted(work.done) == [0, 1, 2, 3, 4, 7, 8, 9]


def test_a_job_that_is_added_as_the_last_green_thread_ends_is_done() -> None:
    """It ends some turns of the loop before its group forgets it, and others run in between."""
    queue, done = JobQueue(1), list[str]()
    queue.add(lambda: done.append("first"))
    gevent.spawn(queue.add, lambda: done.append("second"))
    for _ in range(9):
        gevent.sleep(0)
    assert done == ["first", "second"]


def test_a_job_that_fails_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    work, queue = Work(), JobQueue(2)
    work.may_go_on.set()
    for job in (raises, raises, raises, *work.jobs(1, 2)):
        queue.add(job)
    with gevent.Timeout(PATIENCE):
        while len(work.done) < 2:
            gevent.sleep(0)
    assert capsys.readouterr().err.count("ValueError: a job failed") == 3


def test_jobs_of_an_ended_queue_are_not_done() -> None:
    work, queue = Work(), JobQueue(2)
    for job in work.jobs(*range(5)):
        queue.add(job)
    gevent.sleep(0)
    work.may_go_on.set()  # the two that are killed are about to go on, and to take the next ones
    queue.end()
    assert queue.join(PATIENCE)
    gevent.sleep(0)
    assert sorted(set(work.begun)) == [0, 1]
