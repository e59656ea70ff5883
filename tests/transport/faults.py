"""Faults in exchanges with POSes, each with the test that must find it.

``python -m tests.transport.faults`` tries them.
"""

from tests.planting import Fault, try_all

CONNECTION, DIAL, ENDPOINT = "transport/connection", "transport/dial", "transport/endpoint"
EXCHANGE, HEAD, PARSER = "transport/exchange", "transport/head", "transport/parser"
FAILURES, SESSION = "transport/failures", "transport/session"

FAULTS = [
    Fault(
        "what is not sent at its deadline is never sent",
        CONNECTION,
        'linger = struct.pack("ii", enabled, 0)',
        'linger = struct.pack("ii", False, 0)',
        "exchange::no_byte_of_a_request_is_sent_after",
    ),
    Fault(
        "an idle connection to which anything came is not reused",
        CONNECTION,
        "return not is_ready(self._sock.fileno(), READ)\n\n    def reset_on",
        "return True\n\n    def reset_on",
        "connection::anything_came",
    ),
    Fault(
        "an idle connection is reused for a time",
        CONNECTION,
        "if time.monotonic() > self.idle_until:\n            return False\n        return not",
        "if False:\n            return False\n        return not",
        "connection::given_up_before",
    ),
    Fault(
        "session tickets do not end an idle connection",
        CONNECTION,
        "return not self._outgoing.pending and not is_ready(self._sock.fileno(), READ)",
        "return False",
        "connection::after_its_session_tickets",
    ),
    Fault(
        "a second reply in the same packet ends an idle TLS connection",
        CONNECTION,
        "elif not self._incoming.pending and not self._tls.pending():",
        "else:",
        "connection::after_two_replies_at_once",
    ),
    Fault(
        "the end of TLS has to be said",
        CONNECTION,
        "            self._incoming.write_eof()",
        "            raise ssl.SSLZeroReturnError",
        "connection::without_notice",
    ),
    Fault(
        "an answer that came while the loop was late is in time",
        CONNECTION,
        "if waiter.get() or is_ready(self._fileno, events):",
        "if waiter.get():",
        "waiting::loop_was_late",
    ),
    Fault(
        "all addresses have one budget",
        DIAL,
        "share = (until - now) / (len(found) - position)",
        "share = until - now",
        "dial::one_budget",
    ),
    Fault(
        "the addresses of a name are checked",
        DIAL,
        "self._guard.check(host, (address for _, address in found), plain=plain)",
        "self._guard.check(host, (), plain=plain)",
        "exchange::private_address",
    ),
    Fault(
        "a lack of this machine's is not the merchant's",
        DIAL,
        "if error.errno in OURS:",
        "if False:",
        "dial::local_resource",
    ),
    Fault(
        "a name is waited for no longer than the exchange may take, on any thread",
        "transport/resolver",
        "looking.join(timeout)",
        "looking.join()",
        "resolver::look_up_that_hangs",
    ),
    Fault(
        "the fence is asked before the first byte",
        ENDPOINT,
        "                fence()\n",
        "                pass\n",
        "exchange::fence",
    ),
    Fault(
        "after the first byte an order may have been received",
        ENDPOINT,
        "context.begun = context.sent = True",
        "context.begun = True",
        "exchange::silence_after",
    ),
    Fault(
        "what broke off is not reused",
        PARSER,
        " if is_kept else 0.0",
        "",
        "endpoint::what_comes_after or exchange::reused",
    ),
    Fault(
        "a merchant has as many idle connections as it may",
        ENDPOINT,
        "len(self._idle) < self._connections",
        "True",
        "endpoint::as_many_connections",
    ),
    Fault(
        "a peer is verified again after an hour",
        ENDPOINT,
        "        if not connection.is_resumed:\n",
        "        if True:\n",
        "endpoint::after_an_hour",
    ),
    Fault(
        "an exchange of a closed transport leaves nothing open",
        ENDPOINT,
        "        self._connections = 0\n",
        "",
        "endpoint::leaves_nothing_open",
    ),
    Fault(
        "two merchants never share a connection",
        EXCHANGE,
        "endpoint = self._endpoints.get(terms)",
        "endpoint = next(iter(self._endpoints.values()), None)",
        "exchange::never_shared",
    ),
    Fault(
        "the least recently used endpoint goes first",
        EXCHANGE,
        "                self._endpoints.move_to_end(terms)\n",
        "                pass\n",
        "exchange::least_recently_used",
    ),
    Fault(
        "a certificate that is refused is for an operator",
        FAILURES,
        'ssl.SSLCertVerificationError: FailureRow("certificate", _CONFIGURATION)',
        'ssl.SSLCertVerificationError: FailureRow("certificate", _BY_PROGRESS)',
        "exchange::unknown_authority",
    ),
    Fault(
        "a header's value injects no line",
        HEAD,
        "if not _FIELD.fullmatch(field):",
        "if False:",
        "head::invalid_field",
    ),
    Fault(
        "a reply has one length",
        PARSER,
        "if name in headers and name in _LISTS:",
        "if False:",
        "parser::invalid_reply_is_refused",
    ),
    Fault(
        "what follows a reply is no reply",
        PARSER,
        "is_kept = is_kept and not left\n",
        "pass\n",
        "parser::valid_reply_is_read",
    ),
    Fault(
        "a head has an end",
        PARSER,
        "            if max(line_end, 0 if line_end else len(data)) > HEAD_LIMIT:",
        "            if False:",
        "parser::limit_is_exact",
    ),
    Fault(
        "a busy connection follows its host's name",
        CONNECTION,
        "min(time.monotonic() + seconds, self._old_at)",
        "time.monotonic() + seconds",
        "connection::replaced_in_time",
    ),
    Fault(
        "a refusal has the small limit",
        PARSER,
        "    if status >= 400:  # a refusal",
        "    if False:  # a refusal",
        "parser::but_for_a_refusal",
    ),
    Fault(
        "an SDK creates no order again after doubt",
        SESSION,
        "if made.changes and self._in_doubt is not None:",
        "if False:",
        "session::after_doubt",
    ),
    Fault(
        "an SDK's adapters are not mounted",
        SESSION,
        "    def get_adapter(",
        "    def get_no_adapter(",
        "session::go_around",
    ),
    Fault(
        "a session follows no redirect",
        SESSION,
        "    def get_redirect_target(",
        "    def get_no_redirect_target(",
        "session::redirect",
    ),
    Fault(
        "an SDK hides no failure",
        SESSION,
        "        if self.failure is not None and not passes:",
        "        if False:",
        "session::whatever_an_sdk",
    ),
    Fault(
        "an exchange that has ended is not interrupted",
        "transport/deadline",
        "            if self._thread is thread:",
        "            if True:",
        "deadline::interrupts_nothing_after_it",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "transport")
