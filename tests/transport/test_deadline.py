"""Cancelling an attempt: in its exchange, before it, and when that has just ended."""

import gevent
import pytest

from pos_gateway.transport.deadline import CallContext, DeadlineExceeded


def test_an_exchange_in_flight_is_cancelled() -> None:
    context = CallContext()
    with pytest.raises(DeadlineExceeded), context:
        context.cancel()
        gevent.sleep(30)


def test_an_exchange_that_ends_as_it_is_cancelled_interrupts_nothing_after_it() -> None:
    """The outcome is being committed then: an interruption would lose it."""
    context = CallContext()
    with context:
        context.cancel()
    gevent.sleep(0)


def test_no_exchange_begins_once_it_is_cancelled() -> None:
    context = CallContext()
    context.cancel()
    with pytest.raises(DeadlineExceeded), context:
        pass
    gevent.sleep(0)
