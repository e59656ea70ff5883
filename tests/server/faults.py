"""Faults in the HTTP server's connections, callbacks and client, each with the test that must find it.

``python -m tests.server.faults`` tries them.
"""

from tests.planting import Fault, try_all

FILE = "server/uvicorn_internals"
CLIENT = "http_client"

FAULTS = [
    Fault(
        "what is malformed is answered in its turn",
        FILE,
        "            if cycle is None or cycle.response_complete:\n                self._reply(problem)",
        "            self._reply(problem)",
        "uvicorn_internals::is_answered_behind_the_requests_before_it",
    ),
    Fault(
        "a refused request is answered once those before it are",
        FILE,
        "if self._refusal is not None:\n                self._reply(self._refusal)",
        "if self._refusal is None:\n                self._reply(self._refusal)",
        "uvicorn_internals::is_answered_behind_the_requests_before_it",
    ),
    Fault(
        "trailers are not headers",
        FILE,
        "self.headers = []  # trailers go there",
        "",
        "uvicorn_internals::trailers_do_not_become_headers",
    ),
    Fault(
        "a head that comes in one packet is bounded",
        FILE,
        "size > HEAD_BYTES or len(headers) > HEADERS",
        "len(headers) > HEADERS",
        "uvicorn_internals::a_head_is_bounded_however_it_comes",
    ),
    Fault(
        "a request that begins in the packet of another one has the time limit",
        FILE,
        "        if self.since is None:  # it came in one packet with the end of the one before\n"
        "            self.since = self.loop.time()",
        "",
        "uvicorn_internals::each_request_has_the_time_limit",
    ),
    Fault(
        "the rest of a refused request is taken before the connection is closed",
        FILE,
        "if self.since is None or self._is_lingering or not transport.can_write_eof():",
        "if True:",
        "uvicorn_internals::a_slow_request_is_refused_and_its_rest_dropped",
    ),
    Fault(
        "the rest of a refused request is not taken for ever",
        FILE,
        "(LINGER if self._is_lingering else REQUEST_TIMEOUT)",
        "REQUEST_TIMEOUT",
        "uvicorn_internals::a_slow_request_is_refused_and_its_rest_dropped",
    ),
    Fault(
        "a client that takes nothing is cut off",
        FILE,
        "self._unsent = unsent",
        "self._unsent = 0",
        "uvicorn_internals::a_client_that_takes_nothing_is_cut_off",
    ),
    Fault(
        "a client that takes something is not cut off",
        FILE,
        "unsent == 0 or unsent < self._unsent or self._unsent == 0",
        "unsent == 0 or self._unsent == 0",
        "uvicorn_internals::a_client_that_takes_nothing_is_cut_off",
    ),
    Fault(
        "a POST is answered although its client ended its side",
        FILE,
        "self.cycle.keep_alive = False\n        else:",
        "return False\n        else:",
        "uvicorn_internals::only_a_post_outlives_the_end",
    ),
    Fault(
        "the connection of such a POST is closed",
        FILE,
        "self.cycle.keep_alive = False\n        else:",
        "pass\n        else:",
        "uvicorn_internals::only_a_post_outlives_the_end",
    ),
    Fault(
        "a POST is answered although the one behind it was cut short",
        FILE,
        "self.refuse(_malformed())  # it was cut short",
        "return False",
        "uvicorn_internals::a_post_is_answered_before_one_that_was_cut_short",
    ),
    Fault(
        "a connection that was reset leaves no timer",
        FILE,
        "        self._unset_keepalive_if_required()\n        self.transport.close = _nothing",
        "        self.transport.close = _nothing",
        "uvicorn_internals::a_lost_connection_leaves_nothing_behind",
    ),
    Fault(
        "a request with others behind it hears of a lost connection",
        FILE,
        "            self._running.disconnected = True\n",
        "",
        "uvicorn_internals::a_lost_connection_is_known",
    ),
    Fault(
        "nothing is written to a closed transport",
        FILE,
        "        if not self._transport.is_closing():\n",
        "        if True:\n",
        "uvicorn_internals::nothing_is_written_to_a_closed_transport",
    ),
    Fault(
        "a new connection takes the place of an idle one",
        FILE,
        "oldest = next(iter(self.idle), None)",
        "oldest = None",
        "uvicorn_internals::a_new_connection_takes_the_place_of_the_longest_idle",
    ),
    Fault(
        "a connection with a request in flight is not idle",
        FILE,
        "        self.idle.pop(self, None)\n        if not self.pipeline",
        "        if not self.pipeline",
        "uvicorn_internals::with_all_connections_busy",
    ),
    Fault(
        "few requests wait on a connection",
        FILE,
        "len(self.pipeline) > PIPELINED",
        "False",
        "uvicorn_internals::few_requests_wait_on_a_connection",
    ),
    Fault(
        "what is around a chunked body is bounded",
        FILE,
        "self._bytes - _AROUND * self._body > HEAD_BYTES",
        "False",
        "uvicorn_internals::what_is_around_a_body_is_bounded",
    ),
    Fault(
        "what follows an upgrade is read",
        FILE,
        "data = data[upgrade.args[0] :]",
        "return",
        "uvicorn_internals::what_follows_an_upgrade_is_the_next_request",
    ),
    Fault(
        "a body behind an upgrade is not read as a request",
        FILE,
        "if has_body and parser.should_upgrade():",
        "if False:",
        "uvicorn_internals::an_upgrade_with_a_body_is_refused",
    ),
    Fault(
        "a TLS handshake has a time limit",
        FILE,
        'named["ssl_handshake_timeout"] = self.handshake_timeout',
        "pass",
        "uvicorn_internals::a_tls_handshake_has_a_time_limit",
    ),
    Fault(
        "the client's token is not replaced by ~/.netrc",
        CLIENT,
        "                    auth=self._bearer,",
        "",
        "http_client::netrc_does_not_replace_the_token",
    ),
    Fault(
        "the client follows no redirect",
        CLIENT,
        "allow_redirects=False",
        "allow_redirects=True",
        "http_client::a_reply_that_is_not_the_gateways_is_told",
    ),
    Fault(
        "a 2xx is the gateway's only if it has an order's state",
        CLIENT,
        "if 200 <= reply.status < 300 and is_right(content):",
        "if 200 <= reply.status < 300 and content is not None:",
        "http_client::a_reply_that_is_not_the_gateways_is_told",
    ),
    Fault(
        "an order is unknown only if the gateway says so",
        CLIENT,
        'if reply.status == 404 and _code(reply) == "unknown_order":',
        "if reply.status == 404:",
        "http_client::a_reply_that_is_not_the_gateways_is_told",
    ),
    Fault(
        "the client stops in time, whatever it is asked to wait",
        CLIENT,
        "if self._clock.monotonic() + wait >= until:",
        "if self._clock.monotonic() >= until:",
        "http_client::it_stops_in_time",
    ),
    Fault(
        "a reply that trickles ends in time",
        CLIENT,
        "if self._clock.monotonic() >= until:\n                        return",
        "if False:\n                        return",
        "http_client::a_server_that_does_not_reply_is_left_in_time",
    ),
    Fault(
        "the client waits for as long as it is asked to",
        CLIENT,
        "wait = pause + (self._asked_for(reply) if isinstance(reply, _Reply) else 0.0)",
        "wait = pause",
        "http_client::it_tries_again_as_it_is_asked_to",
    ),
    Fault(
        "only the orders without a confirm are posted again",
        CLIENT,
        "left = [n for n in left if isinstance(results[n].error, BrokerUnavailable)]",
        "left = [n for n in left if results[n].error]",
        "http_client::orders_of_a_batch_without_a_confirm_are_posted_again",
    ),
    Fault(
        "no traceback has the token",
        CLIENT,
        "return _no_reply(error)",
        "raise BrokerUnavailable(str(error)) from error",
        "http_client::no_error_has_the_token",
    ),
    Fault(
        "a POS is told to call again about an order that is being written",
        "server/callback_intake",
        "if CallbackResult.BUSY in results:",
        "if False:",
        "callback_groups::being_written",
    ),
    Fault(
        "a callback that cannot be written fails alone",
        "server/callback_writer",
        "if len(group) > 1 and not isinstance(error, LedgerUnavailable):",
        "if False:",
        "callback_groups::cannot_be_written",
    ),
    Fault(
        "a callback whose POS was told to call again is not written",
        "server/callback_writer",
        "if not one[1].done():",
        "if True:",
        "callback_groups::bounded_time",
    ),
]

if __name__ == "__main__":
    try_all(FAULTS, "server")
