"""Cancelling an attempt: in its exchange, before it, and when that has just ended."""

import gevent
import pytest

from pos_gateway.transport.deadline import CancelToken, DeadlineExceeded


def test_an_exchange_in_flight_is_cancelled() -> None:
    token = CancelToken()
    token.begin()
    token.cancel()
    with pytest.raises(DeadlineExceeded):
        gevent.sleep(30)


def test_an_exchange_that_ends_as_it_is_cancelled_interrupts_nothing_after_it() -> None:
    """The outcome is being committed then: an interruption would lose it."""
    token = CancelToken()
    token.begin()
    token.cancel()
    token.finish()
    gevent.sleep(0)


def test_no_exchange_begins_once_it_is_cancelled() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(DeadlineExceeded):
        token.begin()
    gevent.sleep(0)
