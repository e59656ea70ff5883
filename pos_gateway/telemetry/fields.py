"""The allowlist of log fields: every field's name and meaning.

The value of an unlisted field is written as ``HIDDEN``: a possible secret, or personal data. To add
a field, check the values and describe the field here.
"""

#: Replaces the value of an unknown field.
HIDDEN = "[redacted]"

FIELDS = {
    # In every line.
    "timestamp": "when it happened, in UTC",
    "level": "debug, info, warning, error or critical",
    "event": "what happened",
    "exception": "where an exception was raised, and its message (500 characters of its first line)",
    # A database's losses and duplicates.
    "event_id": "an event's id that another event had already",
    "type": "that event's type",
    "first": "the first position that was lost",
    "last": "the last position that was lost",
    "outcomes": "how many outcomes were written again",
    # Orders and their merchants.
    "order_id": "the order",
    "merchant_id": "its merchant",
    "provider": "the merchant's provider",
    "adapter": "the way of speaking to its POS",
    "action": "submit or cancel",
    "attempt": "which one it was, counted from 1",
    "outcome": "the attempt's result: accepted, rejected, cancelled, expired, failed, pending, retry,"
    " in_doubt",
    "contact": "how the merchant fared: none (not called), answered, overloaded, timed_out, failed",
    "reason": "why: a code; of a message that is no order, a sentence without a word of it",
    "seconds": "how long it took; of a breaker, for how long the merchant is left alone",
    "waited_seconds": "from when a worker got the message until the order had a green thread",
    "claim_seconds": "from there until the claim on it was durable",
    "connect_seconds": "for connecting, TLS included; 0 if a connection was there",
    "first_byte_seconds": "from the beginning of the call until the POS's reply began",
    "trace_id": "the trace that it belongs to, where orders are traced",
    "meaning": "what its POS says of it by itself: a decision, or how far it is",
    # Everything else.
    "thread": "what a thread of the server does: a preview, a run, a count",
    "error": "what went wrong, in a sentence",
    "code": "why a message was dead-lettered; what a POS wants entered for its callbacks' URL;"
    " why a poll failed",
    "why": "what moved a breaker",
    "cache": "which one: merchants, catalogs, tokens",
    "key": "what in it: a merchant's id; of a token, a digest of its credentials; of a quota, its app or credential",
    "keys": "how many",
    "grant": "the id of a grant, whose tokens are sealed in the database",
    "calls": "how many were refused since the line before",
    "merchants": "how many",
    "orders": "how many",
    "operations": "how many of the ledger's, to be tried again",
    "again_in": "seconds until the next try",
    "status": "what a process ended with; of a refused token, 401 or 403; of an alert, firing or"
    " resolved",
    "token": "a token's name",
    "what": "what its holder did, as in the audit",
    "client": "an HTTP client's address",
    "clients": "how many of them, up to a thousand",
    "count": "how many tokens were refused in that second",
    "address": "an address of this machine",
    "port": "a port of this machine",
    "connections": "how many clients' connections the HTTP server allows",
    "files": "how many files the system allows it",
    "path": "a path of the HTTP API",
    "alert": "what needs a person: a condition of docs/alerts.md",
    "subject": "of what it is: a merchant's id, a queue, or the fleet",
    "settling": "whether permits are still those of workers before",
    "value": "where a package says that its adapter is",
    "records": "how many lines were dropped",
    "dropped_debug": "how many of them were of this level; likewise:",
    "dropped_info": "",
    "dropped_warning": "",
    "dropped_error": "",
    "dropped_critical": "",
    "logger": "which part of a library",
    "message": "what a library says (2,000 characters of it)",
}
