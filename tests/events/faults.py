"""Faults in the event pipeline, each with the test that has to find it.

``python -m tests.events.faults`` tries them.
"""

from tests.planting import Fault, try_all

MACHINE = "pipeline_machine::"

FAULTS = [
    Fault(
        "rows that are picked together get their positions by id",
        "events/outbox",
        "where position is null order by id limit {most}",
        "where position is null order by id desc limit {most}",
        MACHINE,
    ),
    Fault(
        "who led before gives no position",
        "events/outbox",
        "if found is None or Term(*found).epoch != term.epoch:",
        "if found is None:",
        "outbox::who_led_before",
    ),
    Fault(
        "of two that take over at once one leads",
        "events/outbox",
        "where id = 1 and epoch = {epoch}\nreturning leader",
        "where id = 1\nreturning leader",
        "outbox::of_two_that_take_over_at_once",
    ),
    Fault(
        "who led before does not depose who leads now",
        "events/outbox",
        "update pipeline set leader = null, published = {published} where id = 1 and epoch = {epoch}",
        "update pipeline set leader = null, published = {published} where id = 1",
        "outbox::who_led_before_does_not_depose",
    ),
    Fault(
        "positions whose answer was lost are found again",
        "events/outbox",
        "assigned=before if after is None else after",
        "assigned=term.assigned if after is None else after",
        MACHINE,
    ),
    Fault(
        "a new leader begins behind what is published, and not behind what has a position",
        "events/outbox",
        "update pipeline set leader = {leader}, epoch",
        "update pipeline set leader = {leader}, published = assigned, epoch",
        MACHINE,
    ),
    Fault(
        "events are read in the order of their positions",
        "events/outbox",
        "order by position limit {most}) events\norder by position",
        "order by id limit {most}) events\norder by id",
        MACHINE,
    ),
    Fault(
        "helpers begin at the back",
        "events/outbox",
        "order by id desc limit {most}",
        "order by id limit {most}",
        "helping::begins_at_the_back",
    ),
    Fault(
        "what somebody alive has leased is left alone",
        "events/outbox",
        "(helper is null or not {is_alive})",
        "(helper is null or true or {is_alive})",
        "helping::helpers_do_each_their_own_part",
    ),
    Fault(
        "only what is published is pruned",
        "events/outbox",
        "and position <= (select published from pipeline where id = 1)",
        "",
        "outbox::only_what_is_published",
    ),
    Fault(
        "after one that was refused events are published one by one",
        "events/pipeline",
        "self._singly = self._batch",
        "self._singly = 0",
        "pipeline::after_one_that_was_refused",
    ),
    Fault(
        "what is behind one that was refused does not count",
        "events/pipeline",
        "            stored += done\n",
        "            stored += done if away else len(part)\n",
        MACHINE,
    ),
    Fault(
        "what was not confirmed when the broker went away does not count",
        "events/pipeline",
        "done, away = error.confirmed, error",
        "done, away = len(part), error",
        MACHINE,
    ),
    Fault(
        "what is published is written down when it is confirmed, and not before",
        "events/pipeline",
        "        term = self._outbox.assign(term, self._batch)\n",
        "        term = self._outbox.assign(replace(term, published=term.assigned), self._batch)\n",
        MACHINE,
    ),
    Fault(
        "a leader whose lease is over knows that it is",
        "events/leadership",
        'self._lease().holds(self._term.leader or "")',
        "True",
        "leadership::when_a_leaders_lease_is_over",
    ),
    Fault(
        "a leader that beats is not replaced",
        "events/leadership",
        "or self._others.is_over(found.leader)",
        "or True",
        "leadership::a_leader_that_beats",
    ),
    Fault(
        "nobody is replaced because the database was away",
        "events/leadership",
        "            self._others.excuse(now - self._away_since)\n",
        "",
        "leadership::because_the_database_was_away",
    ),
    Fault(
        "a leader that is cut off from the broker steps down",
        "events/pipeline",
        "            self._leadership.step_down()\n",
        "",
        "leadership::lets_another_lead",
    ),
    Fault(
        "a row that cannot be read is told as that",
        "events/hydration",
        "        except (CannotOpen, ValueError) as error:",
        "        except ValueError as error:",
        "hydration::cannot_be_read_is_left_out",
    ),
    Fault(
        "what a helper left is not believed unread",
        "events/hydration",
        'return body if _an_object(body).get("type") == f"order.{row.kind}" else None',
        "return body",
        "hydration::what_a_helper_left",
    ),
    Fault(
        "what a helper cannot read is left to the leader",
        "events/hydration",
        "        if any(each in body for each in _UNREAD):\n            return None\n",
        "",
        "helping::what_it_has_no_key_to",
    ),
    Fault(
        "the leases of helpers are looked at again",
        "events/helping",
        "if now >= self._look_at:",
        "if not self._alive:",
        "helping::is_anothers_when_its_lease_is_over",
    ),
    Fault(
        "no position is given twice by a database that has gone back",
        "events/pipeline",
        "if term.assigned < (known := max(self._sent, self._leadership.seen)):",
        "if False and (known := 0):",
        "failover::gives_no_position_twice",
    ),
    Fault(
        "what the broker may have is remembered by who sent it",
        "events/pipeline",
        "self._sent = max(self._sent, rows[-1].position or 0)",
        "pass",
        "failover::gives_no_position_twice",
    ),
    Fault(
        "a leader goes on behind what it has seen another one give",
        "events/leadership",
        "self.seen = max(self.seen, found.assigned)",
        "pass",
        "failover::who_leads_next",
    ),
]


if __name__ == "__main__":
    # One example that finds it ends the search.
    try_all(FAULTS, "events", HUNT="yes", EXAMPLES="200")
