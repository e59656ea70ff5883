"""Faults planted in a backend's publisher one at a time: the tests beside this must find every one.

``python -m tests.broker.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "a message whose connection is lost is written again",
        "broker/plain_publisher",
        "_WRITES = 2",
        "_WRITES = 1",
        "plain_publisher::written_again_once",
    ),
    Fault(
        "every read has a time limit",
        "broker/session",
        "            self._socket.settimeout(ANSWER)\n",
        "",
        "plain_publisher::vanishes_while_queues",
    ),
    Fault(
        "a message that no queue takes is an error",
        "broker/plain_publisher",
        "mandatory=True",
        "mandatory=False",
        "both_publishers::only_the_unroutable",
    ),
    Fault(
        "an alarm at the broker is an error at once",
        "broker/plain_publisher",
        "        self._blocked = reason\n",
        "        pass\n",
        "plain_publisher::memory_alarm",
    ),
    Fault(
        "after a refusal the next message has a new connection",
        "broker/plain_publisher",
        "self._is_closed() or session.is_refused",
        "self._is_closed()",
        "plain_publisher::refused_message",
    ),
    Fault(
        "no message loses its second write to others that are too long",
        "broker/plain_publisher",
        "                job.writes -= 1",
        "                pass",
        "plain_publisher::however_often_others_are_too_long",
    ),
    Fault(
        "a message whose caller has given up is not written",
        "broker/plain_publisher",
        "            self.done.cancel()",
        "            pass",
        "plain_publisher::caller_has_given_up",
    ),
    Fault(
        "a forked child leaves its parent's connection alone",
        "broker/plain_publisher",
        "        if self._writer.pid != os.getpid():",
        "        if False:",
        "plain_publisher::forked_child",
    ),
    Fault(
        "what TLS has decrypted is read",
        "broker/session",
        "if pending is not None and pending():",
        "if False:",
        "plain_publisher::tls",
    ),
    Fault(
        "an idle connection that is dead is noticed",
        "broker/session",
        "            self.connection.heartbeat_check()\n",
        "            pass\n",
        "plain_publisher::idle_connection",
    ),
    Fault(
        "messages whose connection is lost meanwhile have their error",
        "broker/publisher",
        "                if not link.alive:\n",
        "                if False:\n",
        "publisher::lost_meanwhile",
    ),
    Fault(
        "a channel without confirms is left",
        "broker/link",
        "is_due = oldest and ticked",
        "is_due = False and ticked",
        "publisher::a_batch_leaves_a_channel",
    ),
    Fault(
        "a connection stays through an alarm",
        "broker/link",
        "if is_due and self.blocked is None",
        "if is_due",
        "publisher::stays_through_an_alarm",
    ),
    Fault(
        "a backend leaves a channel without confirms",
        "broker/plain_publisher",
        "                    session.check_confirms()\n",
        "",
        "plain_publisher::confirms_nothing_any_more",
    ),
    Fault(
        "reading the split is part of the first call's time",
        "client/orders",
        "left = max(0.0, until - time.monotonic())\n            self._publisher.publish(",
        "left = self._timeout\n            self._publisher.publish(",
        "order_client::first_call_s_time",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "broker")
