"""Faults in the ledger, each with the test that has to find it; see ``test_planted_faults.py``.

``python -m tests.ledger.faults`` plants one after the other and says which are ``found`` and which
are ``missed``. Each is tried in a fork of this process, which has the libraries imported already.
"""

import importlib
import os
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from tests.planting import chosen

#: What takes the longest to import, and has none of the gateway in it.
LIBRARIES = (
    "alembic.command",
    "alembic.config",
    "hypothesis",
    "psycopg",
    "pydantic",
    "pytest",
    "requests",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "structlog",
)


@dataclass(frozen=True)
class Fault:
    rule: str
    file: str
    right: str
    wrong: str
    #: The test's file, and a part of its name.
    by: str


FAULTS = [
    Fault(
        "whoever was taken over says no more that it sends",
        "statements",
        '{from_rows}"""\n    + _UNDER_CLAIM\n    + " and orders.state = \'claimed\'"',
        '{from_rows}"""\n    + _THIS\n    + " and orders.state = \'claimed\'"',
        "claims::whoever_was_taken_over_can_write_nothing",
    ),
    Fault(
        "whoever was taken over writes no outcome",
        "statements",
        "_UNDER_CLAIM\n    + \" and orders.state in ('claimed', 'sending')\"",
        "_THIS\n    + \" and orders.state in ('claimed', 'sending')\"",
        "claims::whoever_was_taken_over_can_write_nothing",
    ),
    Fault(
        "an outcome that was written stays",
        "statements",
        "    + \" and orders.state in ('claimed', 'sending')\"\n",
        "",
        "claims::an_outcome_that_was_written_stays",
    ),
    Fault(
        "an outcome under a claim that is lost has no event",
        "statements",
        'if is_written and "event_id" in row:',
        'if "event_id" in row:',
        "events::an_outcome_under_a_claim_that_is_lost",
    ),
    Fault(
        "the same event twice is one row",
        "statements",
        "on conflict (event_id) do nothing",
        "",
        "events::the_same_event_twice",
    ),
    Fault(
        "an order found in sending is in doubt",
        "batch",
        "return replace(self._in_doubt(row), deaths=",
        "return replace(row.past, deaths=",
        "claims::an_order_found_in_sending",
    ),
    Fault(
        "an order found claimed is in no doubt",
        "batch",
        "        if row.state is not State.SENDING:\n            return row.past\n",
        "",
        "claims::an_order_found_claimed",
    ),
    Fault(
        "deaths are counted",
        "batch",
        "deaths=row.past.deaths + others.died(row.owner))",
        "deaths=row.past.deaths)",
        "claims::deaths_are_counted",
    ),
    Fault(
        "who goes on under another lease has not died",
        "lease",
        "return lease_id in self._seen and not any(",
        "return lease_id in self._seen or any(",
        "claims::goes_on_under_another_lease",
    ),
    Fault(
        "no lease runs out while the database is away",
        "lease",
        "(beat, s, since + seconds)",
        "(beat, s, since)",
        "claims::while_the_database_is_away",
    ),
    Fault(
        "a late beat revives no lease",
        "lease",
        "if lease_id == self.id and (is_first or self._clock.monotonic() < self._until):",
        "if lease_id == self.id:",
        "claims::does_not_revive_it",
    ),
    Fault(
        "a doubt is in the row of whoever takes over",
        "statements",
        "deaths = {deaths}, doubt_since = {doubt_since}, updated_at = {now},\n    payload",
        "deaths = {deaths}, updated_at = {now},\n    payload",
        "claims::an_order_found_in_sending",
    ),
    Fault(
        "a claim whose answer was lost is known by its ticket",
        "batch",
        "if row.ticket == ticket:  #",
        "if False:  #",
        "unknown_commits::the_first_beat",
    ),
    Fault(
        "a claim whose answer was lost has the lease that is over no more",
        "batch",
        "if owner != self._lease_id:",
        "if False:",
        "unknown_commits::whose_lease_ran_out_since",
    ),
    Fault(
        "what was written under an earlier id of its own is a worker's own",
        "lease",
        'return owner.rpartition("-")[0] == self._worker',
        "return owner == self.id",
        "claims::does_not_take_over_from_itself",
    ),
    Fault(
        "an outcome whose answer was lost is found written",
        "batch",
        "return row is not None and row.epoch == each.claim.epoch and row.state is state",
        "return False",
        "unknown_commits::wherever_the_connection_breaks and commit",
    ),
    Fault(
        "an outcome that is found is of the same claim",
        "batch",
        "row.epoch == each.claim.epoch and row.state is state",
        "row.state is state",
        "claims::whoever_was_taken_over_can_write_nothing",
    ),
    Fault(
        "an abandoned claim is remembered until somebody has resumed it",
        "batch",
        "        self.resumed.append(row.ticket)\n"
        "        return self._in_doubt(row) if self._abandoned[row.ticket] else row.past",
        "        sent = self._abandoned.pop(row.ticket)  # type: ignore[attr-defined]\n"
        "        return self._in_doubt(row) if sent else row.past",
        "unknown_commits::an_abandoned_order_is_resumed_once",
    ),
    Fault(
        "an abandoned claim is in doubt if bytes have left",
        "batch",
        "return self._in_doubt(row) if self._abandoned[row.ticket] else row.past",
        "return row.past",
        "claims::in_doubt_if_bytes_may_have_left",
    ),
    Fault(
        "a claim that was given up is abandoned",
        "ledger",
        "self._abandoned[ticket] = False",
        "pass",
        "unknown_commits::lost_for_good",
    ),
    Fault(
        "a lease that is younger than the last look is not over",
        "ledger",
        "if is_old or not self._others.know(owners):",
        "if is_old:",
        "claims::younger_than_the_last_look",
    ),
    Fault(
        "a lease is over for its holder before it is for others",
        "lease",
        "self._until = since + self.seconds - MARGIN",
        "self._until = since + self.seconds + 0.5",
        "claims::until_a_margin_before",
    ),
    Fault(
        "a lease counts from before its beat",
        "ledger",
        "self.lease.beaten(*beat)",
        "self.lease.beaten(beat[0], self._clock.monotonic())",
        "claims::counts_from_before",
    ),
    Fault(
        "a worker whose lease ran out goes on under a new id",
        "lease",
        "        if -inf < self._until <= now:\n            self.end()\n",
        "",
        "claims::goes_on_under_a_new_id",
    ),
    Fault(
        "others count from when they first saw a beat",
        "lease",
        "since = known[2] if known is not None and known[0] == beat else now",
        "since = known[2] if known is not None else now",
        "claims::a_lease_that_beats_goes_on",
    ),
    Fault(
        "a lease that does not beat is over one day",
        "lease",
        "since = known[2] if known is not None and known[0] == beat else now",
        "since = now",
        "claims::others_wait_for_a_whole_lease",
    ),
    Fault(
        "a lease that was given back holds no more",
        "ledger",
        "        self.lease.end()  # first",
        "        # first",
        "claims::a_lease_that_was_given_back",
    ),
    Fault(
        "a worker's lease is there before its claims",
        "ledger",
        "self._writer.say.beat(cursor, beat[0], self.lease.seconds, now)",
        "pass",
        "claims::younger_than_the_last_look",
    ),
    Fault(
        "what was not written is written when the database is back",
        "commits",
        "self._waiting.extendleft(reversed(batch))",
        "self._waiting.extendleft(reversed(batch[1:]))",
        "commits::what_was_tried_first",
    ),
    Fault(
        "what was tried first is tried first again",
        "commits",
        "self._waiting.extendleft(reversed(batch))",
        "self._waiting.extendleft(batch)",
        "commits::what_was_tried_first",
    ),
    Fault(
        "whoever comes soon after a transaction began waits for the next",
        "commits",
        "time.sleep(max(0.0, began + GATHER - time.monotonic()))",
        "time.sleep(0.0)",
        "commits::whoever_comes_soon_after_a_transaction",
    ),
    Fault(
        "a transaction's own time is part of the gap to the next",
        "commits",
        "time.sleep(max(0.0, began + GATHER - time.monotonic()))",
        "time.sleep(GATHER)",
        "commits::is_part_of_the_gap",
    ),
    Fault(
        "what cannot be written fails alone",
        "commits",
        "            if len(batch) == 1:\n",
        "            if True:\n",
        "commits::fails_alone",
    ),
    Fault(
        "what was written of many before the database went is not written again",
        "commits",
        "                del batch[0]\n",
        "                batch = batch[1:]\n",
        "commits::fails_alone_also",
    ),
    Fault(
        "close ends the waits of those whose database is away",
        "commits",
        "if self._closing.is_set() or now >= each.until:",
        "if now >= each.until:",
        "commits::close_ends_the_waits",
    ),
    Fault(
        "patience has an end",
        "commits",
        "if self._closing.is_set() or now >= each.until:",
        "if self._closing.is_set():",
        "commits::no_more_patience",
    ),
    Fault(
        "a connection on which something failed is not used again",
        "writer",
        "            self.close()\n            if",
        "            if",
        "outages::all_at_once",
    ),
    Fault(
        "a transaction is whole on SQLite",
        "writer",
        'cursor.execute("begin immediate")',
        "pass",
        "events::event_cannot_be_written",
    ),
    Fault(
        "text from outside is made fit for a database",
        "batch",
        "entry.external_id and one_line(entry.external_id)[:256]",
        "entry.external_id",
        "text::whatever_a_pos",
    ),
]


def plant(fault: Fault) -> None:
    """Import the gateway with this fault in it, from now on."""
    load = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if name != f"pos_gateway.ledger.{fault.file}":
            return load(loader, name)
        text = Path(loader.path).read_text()
        if fault.right not in text:
            raise ImportError(f"{fault.rule}: {fault.file}.py has no {fault.right!r} any more")
        return compile(text.replace(fault.right, fault.wrong, 1), loader.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def tried(fault: Fault) -> int:
    """What pytest ends with in a process that has the fault."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    plant(fault)
    os.environ["SOON"] = "2"  # what does not come to its end then never does
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    file, _, name = fault.by.partition("::")
    import pytest

    os._exit(
        pytest.main(
            [
                *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=60"),
                *("-k", f"({name}) and not postgresql", f"tests/ledger/test_{file}.py"),
            ]
        )
    )


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    for each in chosen(FAULTS):
        code = tried(each)
        print({0: "missed", 1: "found"}.get(code, f"ended with {code}"), each.rule, flush=True)
    sys.exit()
