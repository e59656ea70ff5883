"""The table of exceptions is complete, and the rule behind it holds."""

import inspect
import socket
import ssl
from collections.abc import Iterator
from types import ModuleType

import gevent.exceptions
import gevent.socket
import gevent.ssl
import pytest

from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply
from pos_gateway.transport.failures import TABLE, failure, row_of

MODULES = (ssl, socket, gevent.ssl, gevent.socket)


def exceptions(module: ModuleType) -> Iterator[type[Exception]]:
    for name, kind in inspect.getmembers(module, inspect.isclass):
        if name.startswith("_"):  # private to the library, and never raised outside
            continue
        if issubclass(kind, Exception) and not issubclass(kind, Warning):
            yield kind


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_exception_of_the_libraries_has_a_line(module: ModuleType) -> None:
    found = list(exceptions(module))
    assert found
    for kind in found:
        if kind is not gevent.exceptions.BlockingSwitchOutError:
            assert row_of(kind).code


def test_an_exception_that_is_no_failure_of_an_exchange_has_no_line() -> None:
    for kind in (KeyError, AttributeError, MemoryError, KeyboardInterrupt):
        with pytest.raises(LookupError):
            row_of(kind)


@pytest.mark.parametrize("kind", TABLE)
def test_a_request_that_may_have_been_sent_does_not_count_as_not_sent(
    kind: type[BaseException],
) -> None:
    error = kind.__new__(kind)
    error.args = ("it went wrong",)
    after, before = failure(error, sent=True), failure(error, sent=False)
    assert isinstance(before, NotSent)
    assert isinstance(after, NoValidReply | Misconfigured)


@pytest.mark.parametrize(
    ("said", "configuration"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", True),
        ("TLSV1_ALERT_UNKNOWN_CA", True),
        ("SSLV3_ALERT_BAD_CERTIFICATE", True),
        ("TLSV1_ALERT_INTERNAL_ERROR", False),
        ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", False),
    ],
)
def test_an_alert_after_the_request_is_final_only_if_it_refuses_our_certificate(
    said: str, configuration: bool
) -> None:
    error = ssl.SSLError(1, f"[SSL: {said}] it is")
    assert isinstance(failure(error, sent=True), Misconfigured) is configuration
