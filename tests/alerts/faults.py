"""Faults in alerts, each with the test that must find it; see ``test_planted_faults.py``.

``python -m tests.alerts.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "an alert ends only once its condition has been clear for a while",
        "alerts/rules",
        "    if now - clear_since < HOLD:\n",
        "    if False:\n",
        "rules::flaps_sends_nothing",
    ),
    Fault(
        "an attempt is begun only if none was begun, or came through, since it was read",
        "alerts/store",
        "                    alerts.c.is_sent == alert.is_sent,  # a message that came through counts anew\n",
        "",
        "watch::claim_was_taken_begins_nothing",
    ),
    Fault(
        "redirects are no confirmation",
        "alerts/sender",
        "        if 200 <= reply.status < 300:\n",
        "        if 200 <= reply.status < 400:\n",
        "watch::receiver_in_trouble_gets_the_same",
    ),
    Fault(
        "many subjects share an alert",
        "alerts/rules",
        "    if len(by_subject) <= (MAX_SUBJECTS // 2 if is_shared else MAX_SUBJECTS):\n",
        "    if True:\n",
        "rules::ten_thousand_merchants",
    ),
    Fault(
        "a shared alert ends at half of the number at which it begins",
        "alerts/rules",
        "(MAX_SUBJECTS // 2 if is_shared else MAX_SUBJECTS)",
        "MAX_SUBJECTS",
        "rules::moves_about_the_limit",
    ),
    Fault(
        "what was not looked at stays as it is",
        "alerts/rules",
        "    for condition, found in findings.items():\n",
        "    for condition in Condition:\n        found = findings.get(condition, ())\n",
        "rules::nothing_can_be_said",
    ),
    Fault(
        "what comes again after an end that may have been sent is another incident",
        "alerts/rules",
        "        if alert is None or (not alert.is_active and alert.attempts):\n",
        "        if alert is None:\n",
        "rules::another_incident",
    ),
    Fault(
        "a time that is ahead keeps no message",
        "alerts/rules",
        "(self.next_at <= now or self.next_at > now + LAST_AGAIN)",
        "self.next_at <= now",
        "rules::step_back_does_not_keep",
    ),
    Fault(
        "without a green worker nothing is said of breakers",
        "alerts/looking",
        "    if fleet.watching:\n",
        "    if True:\n",
        "watch::what_is_not_known_is_not_well",
    ),
    Fault(
        "failing orders are alerted of until the breaker is",
        "alerts/looking",
        "trouble.breaker_for < BREAKER_LASTS",
        "trouble.breaker_for < 60.0",
        "watch::fails_all_its_orders",
    ),
    Fault(
        "workers that report, and take no order, are found",
        "reports/words",
        "    if fleet.consumers == 0:\n",
        "    if False:\n",
        "watch::no_worker_takes",
    ),
    Fault(
        "link-local addresses are refused",
        "alerts/sender",
        '        *("127.0.0.0/8", "::1/128"),\n',
        '        *("127.0.0.0/8", "::1/128", "169.254.0.0/16"),\n',
        "watch::clouds_metadata",
    ),
    Fault(
        "a claim that lies ahead, since the clock was set back, is taken",
        "alerts/store",
        "            claim.until > Now() + 2 * LEASE,  # the database's clock was set back\n",
        "",
        "watch::other_takes_over",
    ),
    Fault(
        "the URL is shown masked",
        "settings",
        '"token", "alert_url", "alert_secret"',
        '"token", "alert_secret"',
        "watch::url_is_shown_masked",
    ),
]

if __name__ == "__main__":
    try_all(FAULTS, "alerts")
