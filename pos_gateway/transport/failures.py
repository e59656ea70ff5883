"""An exception's meaning for the order, by a table of exception classes.

The rule: before the first byte of the request left, the order was provably not processed;
afterwards, anything short of a complete valid reply leaves the order in doubt. The table gives each
exception class a code, and marks the exceptions to the rule.
"""

import socket
import ssl
from enum import StrEnum
from typing import NamedTuple

from pos_gateway.transport.errors import (
    Misconfigured,
    NotBegun,
    NotSent,
    NoValidReply,
    TransportError,
)


class FailureVerdict(StrEnum):
    """An exception's meaning."""

    BY_PROGRESS = "not sent before the first byte left, in doubt after"
    CONFIGURATION = "a person must change something"
    HANDSHAKE = "a matter of configuration, unless the peer just broke off"


class FailureRow(NamedTuple):
    """A line of the table."""

    code: str
    verdict: FailureVerdict


_BY_PROGRESS, _CONFIGURATION = FailureVerdict.BY_PROGRESS, FailureVerdict.CONFIGURATION

#: Rows by exception class. The exception's most specific class decides.
TABLE: dict[type[BaseException], FailureRow] = {
    # TLS
    ssl.SSLCertVerificationError: FailureRow("certificate", _CONFIGURATION),
    ssl.SSLEOFError: FailureRow("broken_off", _BY_PROGRESS),
    ssl.SSLZeroReturnError: FailureRow("broken_off", _BY_PROGRESS),
    ssl.SSLSyscallError: FailureRow("broken_off", _BY_PROGRESS),
    ssl.SSLError: FailureRow("tls", FailureVerdict.HANDSHAKE),
    # The network
    socket.gaierror: FailureRow("dns", _BY_PROGRESS),
    socket.herror: FailureRow("dns", _BY_PROGRESS),
    TimeoutError: FailureRow("timeout", _BY_PROGRESS),
    ConnectionRefusedError: FailureRow("refused", _BY_PROGRESS),
    ConnectionError: FailureRow("broken_off", _BY_PROGRESS),
    OSError: FailureRow("network", _BY_PROGRESS),
    ValueError: FailureRow("invalid_reply", _BY_PROGRESS),
}

#: Alerts of a peer after rejecting our certificate: with TLS 1.3 they arrive after the request was
#: sent. The peer has not read the request.
_REFUSES_US = (
    "CERTIFICATE_REQUIRED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "ALERT_CERTIFICATE_",
    "ALERT_ACCESS_DENIED",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_UNRECOGNIZED_NAME",
    "ALERT_HANDSHAKE_FAILURE",
)


def row_of(kind: type[BaseException]) -> FailureRow:
    """The row for an exception class, or for the nearest ancestor.

    Raises:
        LookupError: no row; the exception is no failure of an exchange.
    """
    for ancestor in kind.__mro__:
        if ancestor in TABLE:
            return TABLE[ancestor]
    raise LookupError(kind.__name__)


def failure(error: BaseException, *, sent: bool) -> TransportError:
    """The transport error for an exception raised within an exchange.

    Args:
        error: the exception of the socket, TLS, or the resolver.
        sent: a byte of the request may have left.
    """
    row = row_of(type(error))
    if row.verdict is FailureVerdict.CONFIGURATION or (
        row.verdict is FailureVerdict.HANDSHAKE and (not sent or _is_refusal(error))
    ):
        return Misconfigured(row.code, error)
    return by_progress(row.code, error, sent=sent)


def without_tracebacks(error: BaseException) -> BaseException:
    """The exception, with its traceback and the tracebacks of all causes and contexts removed.

    An exception and a frame that refer to each other are freed by the garbage collector alone, and
    a collection stops every order.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += (each.__cause__, each.__context__)
    return error


def by_progress(
    code: str, problem: object, *, sent: bool, begun: bool = True
) -> NotSent | NoValidReply:
    """The rule itself."""
    if sent:
        return NoValidReply(code, problem)
    return NotSent(code, problem) if begun else NotBegun(code, problem)


def _is_refusal(error: BaseException) -> bool:
    said = getattr(error, "reason", None) or str(error)
    return any(word in said for word in _REFUSES_US) if isinstance(said, str) else False
