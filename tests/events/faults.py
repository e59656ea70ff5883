"""Faults in the event pipeline, each with the test that must find it.

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
        "a deposed leader assigns no position",
        "events/outbox",
        "if found is None or Term(*found).epoch != term.epoch:",
        "if found is None:",
        "outbox::a_deposed_leader_assigns_and_publishes_nothing",
    ),
    Fault(
        "one of two concurrent take-overs wins",
        "events/outbox",
        "where id = 1 and epoch = {epoch}\nreturning leader",
        "where id = 1\nreturning leader",
        "outbox::one_of_two_concurrent_take_overs_wins",
    ),
    Fault(
        "a deposed leader does not depose the new one",
        "events/outbox",
        "update pipeline set leader = null, published = {published} where id = 1 and epoch = {epoch}",
        "update pipeline set leader = null, published = {published} where id = 1",
        "outbox::a_deposed_leader_does_not_depose_the_new_one",
    ),
    Fault(
        "positions whose reply was lost are found again",
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
        "a live helper's chunk is not taken over",
        "events/outbox",
        "(helper is null or not {is_alive})",
        "(helper is null or true or {is_alive})",
        "helping::helpers_take_separate_chunks",
    ),
    Fault(
        "only what is published is pruned",
        "events/outbox",
        "and position <= (select published from pipeline where id = 1)",
        "",
        "outbox::only_old_published_events_are_pruned",
    ),
    Fault(
        "after a refused event a batch is published one by one",
        "events/pipeline",
        "self._singly = self._batch",
        "self._singly = 0",
        "pipeline::after_a_refused_event_a_batch_is_published_one_by_one",
    ),
    Fault(
        "events behind a refused one do not count as published",
        "events/pipeline",
        "            stored += done\n",
        "            stored += done if away else len(part)\n",
        MACHINE,
    ),
    Fault(
        "unconfirmed events do not count as published",
        "events/pipeline",
        "done, away = error.confirmed, error",
        "done, away = len(part), error",
        MACHINE,
    ),
    Fault(
        "published positions are recorded after the publisher confirm",
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
        "leadership::an_expired_leader_is_replaced",
    ),
    Fault(
        "a leader that renews its lease is not replaced",
        "events/leadership",
        "or self._peers.is_over(found.leader)",
        "or True",
        "leadership::a_leader_that_renews_its_lease_stays_the_leader",
    ),
    Fault(
        "a database outage replaces no leader",
        "events/leadership",
        "            self._peers.excuse(now - self._away_since)\n",
        "",
        "leadership::a_database_outage_replaces_no_leader",
    ),
    Fault(
        "a leader that is cut off from the broker steps down",
        "events/pipeline",
        "            self._leadership.step_down()\n",
        "",
        "leadership::a_leader_without_the_broker_steps_down",
    ),
    Fault(
        "an unreadable row is published as such",
        "events/hydration",
        "        except (CannotOpen, ValueError) as error:",
        "        except ValueError as error:",
        "hydration::an_unreadable_order_is_omitted_and_logged",
    ),
    Fault(
        "a helper's event is checked before it is published",
        "events/hydration",
        'return body if _an_object(body).get("type") == f"order.{row.kind}" else None',
        "return body",
        "hydration::a_helpers_unreadable_event_is_hydrated_again",
    ),
    Fault(
        "a helper skips an order it cannot decrypt",
        "events/hydration",
        "        if any(each in body for each in _UNREAD):\n            return None\n",
        "",
        "helping::a_helper_skips_orders_it_has_no_key_for",
    ),
    Fault(
        "the helpers' leases are read again",
        "events/helping",
        "if now >= self._look_at:",
        "if not self._alive:",
        "helping::a_dead_helpers_chunk_is_taken_over_when_its_lease_expires",
    ),
    Fault(
        "after a failover no position is assigned twice",
        "events/pipeline",
        "if term.assigned < (known := max(self._sent, self._leadership.seen)):",
        "if False and (known := 0):",
        "failover::a_leader_assigns_no_position_twice_and_skips_no_event",
    ),
    Fault(
        "a leader remembers the last position it sent",
        "events/pipeline",
        "self._sent = max(self._sent, rows[-1].position or 0)",
        "pass",
        "failover::a_leader_assigns_no_position_twice_and_skips_no_event",
    ),
    Fault(
        "a new leader goes on behind the last position it has seen",
        "events/leadership",
        "self.seen = max(self.seen, found.assigned)",
        "pass",
        "failover::the_next_leader_goes_on_behind_the_last_position_it_has_seen",
    ),
    Fault(
        "events are cut by bytes before they are read",
        "events/archive",
        "if ids and size < 0:",
        "if False:",
        "archive::events_are_cut_by_number_and_by_bytes",
    ),
    Fault(
        "the first event is read however large it is",
        "events/archive",
        "if ids and size < 0:",
        "if size < 0:",
        "archive::events_are_cut_by_number_and_by_bytes",
    ),
    Fault(
        "polls are frequent again after an event",
        "events/pipeline",
        "        self._poll_after = POLL[0]\n        self.lag.are_left",
        "        self.lag.are_left",
        "pipeline::polls_become_fewer_while_there_are_no_events",
    ),
    Fault(
        "unpublished events come before those that were just assigned",
        "events/outbox",
        "if rows and rows[0].position == after + 1:",
        "if rows:",
        "outbox::not_published_yet_come_before",
    ),
    Fault(
        "events that an assignment has read are its own",
        "events/outbox",
        "self.read(cursor, term.assigned, most) if has_assigned else []",
        "self.read(cursor, term.published, most) if has_assigned else []",
        "outbox::not_published_yet_come_before",
    ),
    Fault(
        "readers of the table have a batch before the next one",
        "events/pipeline",
        "                self._show_progress()\n",
        "",
        "pipeline::a_leader_shows_each_batch_before_it_waits_for_the_next_one",
    ),
    Fault(
        "no event is repeated before its turn",
        "events/archive",
        "row.position is not None and row.position <= published]",
        "row.position is not None]",
        "archive::found_by_its_id_once_it_is_published",
    ),
    Fault(
        "the events of an order's present generation are found",
        "events/archive",
        "range(max(0, last - _REOPENED), last + 1)",
        "range(max(0, last - _REOPENED), max(1, last))",
        "archive::each_generation_of_an_order",
    ),
]


if __name__ == "__main__":
    # One example that finds it ends the search.
    try_all(FAULTS, "events", HUNT="yes", EXAMPLES="200")
