"""Faults in bulk runs, each with the test that must find it; see ``test_planted_faults.py``.

``python -m tests.bulk.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    # The first is the one that `make test` plants: a machine with a few examples may miss the others.
    Fault(
        "a letter's digest is of its body",
        "administration/bulk/letters",
        "hashlib.blake2b(letter.body, digest_size=16)",
        "hashlib.blake2b(b'', digest_size=16)",
        "digest::other_letters_have_other_digests",
    ),
    Fault(
        "a run acts on as many letters of a digest as its preview saw",
        "administration/bulk/letters",
        "        item = those.popleft()\n",
        "        item = those[0]\n",
        "bulk_machine::no_letter_is_lost",
    ),
    Fault(
        "of equal letters those that had begun come last",
        "administration/bulk/letters",
        "            if item.has_begun:\n",
        "            if False:\n",
        "bulk_machine::no_letter_is_lost",
        examples=2_000,
    ),
    Fault(
        "also of those that are read later",
        "administration/bulk/letters",
        "            if item.has_begun:\n                self._begun.append(item)\n",
        "            if item.has_begun and self._count:\n                self._begun.append(item)\n",
        "bulk_machine::no_letter_is_lost",
        examples=4_000,
    ),
    Fault(
        "letters of later items are looked for once those of earlier ones are gone",
        "administration/bulk/letters",
        "                wanted.give_up()\n                fruitless = 0\n                continue\n",
        "                return\n",
        "bulk_machine::no_letter_is_lost",
        examples=2_000,
    ),
    Fault(
        "the items that are left are read in pages",
        "administration/bulk/store",
        "            .limit(BATCH)\n",
        "",
        "store::items_that_are_left_are_read_in_pages",
    ),
    Fault(
        "letters that another consumer may hold are not gone",
        "administration/bulk/letters",
        "                return is_alone and queue.consumers() <= 1\n",
        "                return True\n",
        "bulk_machine::no_letter_is_lost",
        examples=2_000,
    ),
    Fault(
        "a letter's digest does not change when it is delivered again",
        "administration/bulk/letters",
        'str(letter.headers.get("task"))]',
        "str(letter.headers)]",
        "digest::same_however_often",
    ),
    Fault(
        "an item that was acted on is recorded before those that are left are read",
        "administration/bulk/runner",
        "            self._step(None)  # recorded first: it must not be among those that are left\n",
        "            pass\n",
        "bulk_machine::no_letter_is_lost",
        examples=4_000,
    ),
    Fault(
        "an item has begun before it is acted on",
        "administration/bulk/runner",
        "        self._step(task.item)\n        refusal = task.act()\n",
        "        refusal = task.act()\n        self._step(task.item)\n",
        "bulk_machine::no_letter_is_lost",
        examples=2_000,
    ),
    Fault(
        "a run waits for a broker that is away for a moment",
        "administration/bulk/runner",
        "            if self._clock() >= self._broker_until:\n",
        "            if True:\n",
        "letters::goes_on_when_the_broker_is_back",
    ),
    Fault(
        "no more items a second than the rate",
        "administration/bulk/runner",
        "        while (wait := self._next_at - self._clock()) > 0:\n",
        "        while (wait := 0.0) > 0:\n",
        "letters::rate_is_kept",
    ),
    Fault(
        "a process whose lease was taken writes nothing",
        "administration/bulk/store",
        "_runs.id == claim.run.id, _runs.lease == claim.lease,",
        "_runs.id == claim.run.id,",
        "store::its_writes_fail",
    ),
    Fault(
        "a lease from before the database's clock was set back is over",
        "administration/bulk/store",
        "_runs.lease_until.between(Now(), Now() + 2 * LEASE)",
        "_runs.lease_until > Now()",
        "store::clock_that_was_set_back",
    ),
    Fault(
        "a preview from before the database's clock was set back is not being made",
        "administration/bulk/previews",
        "_runs.updated_at.between(Now() - SILENT, Now() + SILENT)",
        "_runs.updated_at > Now() - SILENT",
        "store::a_preview_without_a_write_of_late",
    ),
    Fault(
        "every write renews the lease",
        "administration/bulk/store",
        '{"lease_until": Now() + LEASE, "updated_at": Now()}',
        '{"updated_at": Now()}',
        "store::renews_the_lease",
    ),
    Fault(
        "only what was confirmed is started",
        "administration/bulk/store",
        "            true() if total is None else _runs.total == total,\n",
        "",
        "store::other_numbers_than",
    ),
    Fault(
        "an interrupted run keeps no other one waiting",
        "administration/bulk/store",
        "                self._stop_interrupted(connection, seen)\n",
        "",
        "store::keeps_no_other_waiting",
    ),
    Fault(
        "nothing begins after a stop",
        "administration/bulk/store",
        "            if goes_on and begins is not None:\n",
        "            if begins is not None:\n",
        "store::heard_at_the_next_write",
    ),
    Fault(
        "what had begun and is not found was done",
        "administration/bulk/store",
        "case((was == ItemState.BEGUN, ItemState.DONE), else_=ItemState.GONE)",
        "case((was == ItemState.BEGUN, ItemState.GONE), else_=ItemState.GONE)",
        "store::had_begun_was_done",
    ),
    Fault(
        "the counters are those of the items",
        "administration/bulk/store",
        "            self._recount(connection, run_id)\n            left =",
        "            left =",
        "store::counted_again_at_the_end",
    ),
    Fault(
        "an acknowledgement has reached the broker",
        "broker/dead_letter_queue",
        "            if not self._is_in_order:\n                # Written",
        "            if False:\n                # Written",
        "letters::goes_on_when_the_broker_is_back",
    ),
    Fault(
        "a preview asks the ledger of many letters at once",
        "administration/bulk/letters",
        "            self._ahead(selected)\n",
        "",
        "read_ahead::asks_of_many_at_once",
    ),
    Fault(
        "a foreign message's reason is bounded",
        "broker/dead_letter",
        "one_line(value[:most])",
        "one_line(value)",
        "digest::reason_is_bounded",
    ),
    Fault(
        "what a preview holds of letters is bounded",
        "administration/bulk/read_ahead",
        " or total >= BYTES",
        "",
        "read_ahead::bounded_by_bytes",
    ),
    Fault(
        "what is read ahead has cancel requests, too",
        "ledger/order_admin",
        "    return and_(by_index, tuple_",
        "    return and_(by_index, orders.c.action == Action.SUBMIT, tuple_",
        "read_ahead::asks_of_many_at_once",
    ),
    Fault(
        "runs that can be running are not pruned",
        "ledger/pruning",
        'bulk_runs.c.created_at < before, bulk_runs.c.state != "running")',
        "bulk_runs.c.created_at < before)",
        "store::none_that_runs",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "bulk")
