"""Failures of an exchange, sorted by a question: may the request have been processed?

TransportError
├── NotSent         no byte of the request left: a retry is safe
│   ├── NotBegun        nor was a connection opened: nothing is learned about the peer
│   └── Misconfigured   and a retry is no use until a configuration changes
└── NoValidReply    bytes may have left and no complete valid reply came: in doubt
"""


class TransportError(Exception):
    """An exchange without a reply. ``code`` is for programs, the text for people."""

    def __init__(self, code: str, message: object) -> None:
        self.code = code
        super().__init__(str(message))


class NotSent(TransportError):
    """Provably not processed: nothing of the request left this process."""


class NotBegun(NotSent):
    """No time was left to begin: the peer was neither connected to nor spoken to."""


class Misconfigured(NotSent):
    """The peer cannot be spoken to as configured (certificate, address, URL)."""


class NoValidReply(TransportError):
    """In doubt: the request, or a part of it, may have been received."""
