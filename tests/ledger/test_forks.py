"""A synchronous worker's processes: each inherits the ledger of its parent."""

import multiprocessing
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine

from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.states import Key
from tests.ledger.lab import KEY, SOON, Rows, Worker, an_entry, claimed, without_event

Workers = Callable[..., Worker]
UNREAD = Key("m", "unread")


def forked(ledger: Worker, engine: Engine, do: Callable[[], Any]) -> Any:
    """The result of a call in a process that was forked, and has started as a worker's do."""
    context = multiprocessing.get_context("fork")
    said, saying = context.Pipe(duplex=False)

    def run() -> None:
        engine.dispose(close=False)
        ledger.start_in_fork()
        saying.send(do())

    child = context.Process(target=run)
    child.start()
    assert said.poll(SOON)
    result = said.recv()
    child.join(SOON)
    assert child.exitcode == 0
    return result


def test_a_forked_process_opens_a_new_connection(
    worker: Workers, engine: Engine, rows: Rows
) -> None:
    """On one connection they would read each other's replies, and claim a terminal order."""
    parent = worker()
    parent.record_event(UNREAD, an_entry(Kind.FAILED, key=UNREAD), b"{}")

    def deliver() -> tuple[int, bool]:
        claim = claimed(parent.claim(KEY, send=True, order=b"{}"))
        written = parent.finish(claim, an_entry())
        connects = parent._writer.connects
        parent.close()
        return connects, written

    assert forked(parent, engine, deliver) == (2, True)
    assert rows.order().state == "accepted"
    parent.finish(claimed(parent.claim(Key("m", "o2"), send=True)), without_event())
    assert parent._writer.connects == 1  # its connection is unharmed


def test_a_forked_process_closes_nothing_of_its_parents(worker: Workers, engine: Engine) -> None:
    parent = worker()
    parent.beat()
    forked(parent, engine, parent._writer.close)
    parent.finish(claimed(parent.claim(KEY, send=True)), without_event())
    assert parent._writer.connects == 1


def test_a_forked_process_rewrites_nothing_of_its_parents(worker: Workers, engine: Engine) -> None:
    parent = worker()
    parent.record_event(UNREAD, an_entry(Kind.FAILED, key=UNREAD), b"{}")
    claim = claimed(parent.claim(KEY, send=True))
    parent.abandon(claim, sent=True)

    def left() -> tuple[int, int, bool]:
        batches = list(parent._journal.batches())
        return len(batches), len(parent.abandoned), parent.lease.is_ours(claim.owner)

    assert forked(parent, engine, left) == (0, 0, False)
