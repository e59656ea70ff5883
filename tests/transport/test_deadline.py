"""Cancelling an attempt: in its exchange, before it, and when that has just ended."""

import gevent
import pytest

from pos_gateway.transport.deadline import CancelToken, DeadlineExceeded


def test_an_exchange_in_flight_is_cancelled() -> None:
    token = CancelToken()
    with pytest.raises(DeadlineExceeded), token:
        token.cancel()
        gevent.sleep(30)


def test_an_exchange_that_ends_as_it_is_cancelled_interrupts_nothing_after_it() -> None:
    """The outcome is being committed then: an interruption would lose it."""
    token = CancelToken()
    with token:
        token.cancel()
    gevent.sleep(0)


def test_no_exchange_begins_once_it_is_cancelled() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(DeadlineExceeded), token:
        pass
    gevent.sleep(0)
