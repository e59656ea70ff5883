"""A server's previews and runs in the background, as it stops."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest
from sqlalchemy import Engine

from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.bulk.letters import LetterWork
from pos_gateway.administration.bulk.operations import BulkOperations
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.run import BulkAction
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from pos_gateway.server import bulk_threads as subject
from pos_gateway.server.bulk_threads import PREVIEWS, STOP_TIMEOUT, BulkThreads
from testkit.patience import PATIENCE

#: How often the queue was opened.
opened = threading.Semaphore(0)


class Busy:
    """The queue of dead letters, of which another program has some for ever."""

    others = 1

    def __init__(self, *_: Any) -> None:
        """As the real one."""

    def __enter__(self) -> Self:
        opened.release()
        return self

    def __exit__(self, *_: object) -> None:
        """As the real one."""


def test_a_stop_ends_previews_that_wait_for_another_reader(
    books: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations: Any = BulkOperations(SimpleNamespace(), books, Payloads(Vault()))  # type: ignore[arg-type]

    @contextmanager
    def work(*_: object) -> Any:
        yield LetterWork(
            "", is_selected=lambda _: True, judge=lambda _: None, acting=_no_act, queue=Busy
        )

    monkeypatch.setattr(operations, "_work", work)
    threads = BulkThreads(operations)
    runs = [
        threads.preview(BulkAction.REPLAY, BulkFilter(), BulkOptions(), "kim")
        for _ in range(PREVIEWS)
    ]
    assert opened.acquire(timeout=PATIENCE)
    threads.stop()
    for each in list(threads._threads):
        each.join(PATIENCE)
    assert {operations.store.run(each).problem for each in runs} == {
        "its server was stopped; preview it again"
    }


def _no_act(*_: object) -> Any:
    raise AssertionError("a preview acts on nothing")


def test_a_stop_waits_for_all_together_no_longer_than_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    class Endless:
        def join(self, seconds: float) -> None:
            nonlocal now
            now += seconds

    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: now))
    threads = BulkThreads(SimpleNamespace(store=None))  # type: ignore[arg-type]
    threads._threads = {Endless() for _ in range(PREVIEWS)}  # type: ignore[misc]
    threads.stop()
    assert now == STOP_TIMEOUT
