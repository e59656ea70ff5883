"""Stores confirmed bulk runs: which there are, how far each is, and which process has it.

A run is leased to one process by the database's clock; every write of that process carries its
lease, and fails once another process has it. An item is BEGUN before its action and DONE after it,
so that after a crash only the one item in between is acted on again.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    and_,
    case,
    func,
    insert,
    not_,
    select,
    true,
)
from sqlalchemy import update as sql_update
from sqlalchemy.exc import IntegrityError

from pos_gateway.administration.bulk.previews import (
    BATCH,
    UNCONFIRMED_STATES,
    Previews,
    refusal_columns,
    set_run,
)
from pos_gateway.administration.bulk.run import (
    BulkAction,
    BulkItem,
    BulkRun,
    ItemState,
    RefusalCount,
    Refusals,
    RunState,
)
from pos_gateway.administration.refusal import Refusal
from pos_gateway.audit.note import By
from pos_gateway.database.clock import Now
from pos_gateway.database.schema import audit, bulk_items, bulk_runs
from pos_gateway.domain.errors import AdminError

#: Seconds of a lease, which every write of its process renews.
LEASE = 20.0
#: Maximum reasons of refusals that are shown.
REASONS = 20

_runs = bulk_runs.c
# A lease that ends later than any lease may was taken before the database's clock was set back.
_LASTS = _runs.lease_until.between(Now(), Now() + 2 * LEASE)
_IS_LEASED = and_(_runs.state == RunState.RUNNING, _LASTS)
_IS_OVER = and_(_runs.state == RunState.RUNNING, not_(_LASTS))
_OPEN = (ItemState.PENDING, ItemState.BEGUN)


class LeaseLost(AdminError):
    """Raised when another process has the run, or it has ended: this one must act no further."""


class RunClaim(NamedTuple):
    """A run in the hands of this process."""

    run: BulkRun
    lease: str


class Finished(NamedTuple):
    """An item that was acted on."""

    number: int
    refusal: Refusal | None


class BulkStore:
    """Reads and writes runs. Safe from threads. Raises SQLAlchemyError when the database is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: The runs that are not confirmed yet.
        self.previews = Previews(engine)

    def take(
        self,
        run_id: int,
        *,
        operator: str,
        total: int | None = None,
        refused: int | None = None,
        reason: str | None = None,
    ) -> RunClaim:
        """Lease the run to this process, and start or resume it.

        Args:
            run_id: the run, previewed, stopped or interrupted.
            operator: who starts it; its further actions are audited as theirs.
            total, refused: the preview's numbers, as confirmed.
            reason: why, in the operator's words.

        Raises:
            AdminError: there is no such run, or it has ended; another process has it; another run
                acts on the same subject; the numbers are not its preview's.
        """
        lease, seen = uuid4().hex, self.run(run_id)
        is_as_confirmed = and_(
            true() if total is None else _runs.total == total,
            true() if refused is None else _runs.refused == refused,
        )
        can_start = and_(
            _runs.id == run_id,
            _runs.state.in_((RunState.PREVIEWED, RunState.STOPPED)),
            is_as_confirmed,
        )
        values = {
            "state": RunState.RUNNING,
            "operator": operator,
            "lease": lease,
            "lease_until": Now() + LEASE,
            "stopped_by": None,
            "problem": None,
            "started_at": func.coalesce(_runs.started_at, Now()),
            "updated_at": Now(),
            "ended_at": None,
        }
        try:
            with self._engine.begin() as connection:
                self._stop_interrupted(connection, seen)
                change = sql_update(bulk_runs).where(can_start).values(values)
                has_started = connection.execute(change).rowcount == 1
                if has_started:
                    self._recount(connection, run_id)
                    is_first = seen.state is RunState.PREVIEWED
                    what = "bulk.start" if is_first else "bulk.resume"
                    _note(connection, By(operator, reason), what, seen)
        except IntegrityError:  # the index bulk_runs_at_work
            raise AdminError(_busy(self.active(seen.action.subject))) from None
        now = self.run(run_id)
        if not has_started:
            raise AdminError(_why_not_started(now, total, refused))
        return RunClaim(now, lease)

    def step(
        self, claim: RunClaim, finished: Finished | None = None, begins: BulkItem | None = None
    ) -> bool:
        """Record what was done and what begins, and renew the lease; False: stop, nothing begins.

        Raises:
            LeaseLost: another process has the run; nothing was written.
        """
        values: dict[str, Any] = {"lease_until": Now() + LEASE, "updated_at": Now()}
        if finished is not None:
            name = "done" if finished.refusal is None else "refused"
            values[name] = bulk_runs.c[name] + 1
        with self._engine.begin() as connection:
            renewed = (
                sql_update(bulk_runs)
                .where(self._is_ours(claim))
                .values(values)
                .returning(_runs.stopped_by)
            )
            row = connection.execute(renewed).one_or_none()
            if row is None:
                raise LeaseLost(f"another process has resumed run {claim.run.id}, or ended it")
            if finished is not None:
                _finish(connection, claim.run.id, finished)
            goes_on = row.stopped_by is None
            if goes_on and begins is not None:
                _set_item(connection, claim.run.id, begins.number, state=ItemState.BEGUN)
        return goes_on

    def end(
        self, claim: RunClaim, finished: Finished | None = None, *, problem: str | None = None
    ) -> BulkRun:
        """End this process's part: the run is STOPPED with items left, else DONE.

        Raises:
            LeaseLost: another process has the run.
        """
        return self._end(claim, finished, problem, is_exhausted=False)

    def complete(self, claim: RunClaim, finished: Finished | None = None) -> BulkRun:
        """The same, after the last item that can be found: what is pending is GONE, and what has
        begun was done before its process died."""
        return self._end(claim, finished, None, is_exhausted=True)

    def stop(self, run_id: int, *, operator: str, reason: str | None = None) -> BulkRun:
        """Ask for the run to stop, which it does after the present item; idempotent.

        Raises:
            AdminError: there is no such run.
        """
        seen = self.run(run_id)
        of_it = and_(_runs.id == run_id, _runs.state == RunState.RUNNING)
        with self._engine.begin() as connection:
            first = and_(of_it, _runs.stopped_by.is_(None))
            change = sql_update(bulk_runs).where(first).values(stopped_by=operator)
            if connection.execute(change).rowcount:
                _note(connection, By(operator, reason), "bulk.stop", seen)
            # No process is there to do it.
            connection.execute(
                sql_update(bulk_runs).where(_runs.id == run_id, _IS_OVER).values(_STOPPED)
            )
        return self.run(run_id)

    def run(self, run_id: int) -> BulkRun:
        """The run as it stands. Raises AdminError if there is none."""
        found = self._read(_runs.id == run_id, 1)
        if not found:
            raise AdminError(
                f"there is no run {run_id} (pos-gateway runs list has those there are)"
            )
        return found[0]

    def runs(self, limit: int) -> list[BulkRun]:
        """The latest runs, the last one first, without those that were never confirmed."""
        return self._read(_runs.state.not_in(UNCONFIRMED_STATES), limit)

    def require_idle(self, subject: str) -> None:
        """Raises AdminError, which names it, while a run acts on this subject."""
        active = self.active(subject)
        if active is not None:
            raise AdminError(_busy(active))

    def active(self, subject: str) -> BulkRun | None:
        """The run that acts on this subject at this moment, if any."""
        found = self._read(and_(_runs.subject == subject, _IS_LEASED), 1)
        return found[0] if found else None

    def left(self, run_id: int) -> Iterator[BulkItem]:
        """The items that the run has yet to act on, in their order: read in pages, as they are asked for."""
        items, last = bulk_items.c, 0
        query = (
            select(items.number, items.mark, items.letter, items.merchant_id, items.order_id, items.state)
            .where(items.run == run_id, items.state.in_(_OPEN))
            .order_by(items.number)
            .limit(BATCH)
        )  # fmt: skip
        while True:
            with self._engine.connect() as connection:
                page = connection.execute(query.where(items.number > last)).all()
            for row in page:
                yield BulkItem(*row[:-1], has_begun=row.state == ItemState.BEGUN)
            if len(page) < BATCH:
                return
            last = page[-1].number

    def refusals(self, run_id: int) -> list[RefusalCount]:
        """The refusals by reason, the most frequent first, with examples."""
        of_run = and_(bulk_items.c.run == run_id, bulk_items.c.state == ItemState.REFUSED)
        count = func.count().label("count")
        by_kind = select(bulk_items.c.kind, count).where(of_run).group_by(bulk_items.c.kind)
        found = []
        with self._engine.connect() as connection:
            rows = connection.execute(by_kind.order_by(count.desc(), bulk_items.c.kind))
            for kind, number in rows.fetchmany(REASONS):
                some = select(bulk_items.c.letter).where(of_run, bulk_items.c.kind == kind)
                some = some.order_by(bulk_items.c.number).limit(Refusals.EXAMPLES)
                found.append(RefusalCount(kind, number, tuple(connection.scalars(some))))
        return found

    def refused(self, run_id: int) -> Iterator[tuple[BulkItem, Refusal]]:
        """The refused items, in their order, each with its reason."""
        items = bulk_items.c
        query = (
            select(items.number, items.mark, items.letter, items.merchant_id, items.order_id, items.why, items.kind)
            .where(items.run == run_id, items.state == ItemState.REFUSED)
            .order_by(items.number)
        )  # fmt: skip
        with self._engine.connect() as connection:
            for row in connection.execution_options(yield_per=BATCH).execute(query):
                yield BulkItem(*row[:5]), Refusal(row.why or "", row.kind or "")

    def _end(
        self, claim: RunClaim, finished: Finished | None, problem: str | None, *, is_exhausted: bool
    ) -> BulkRun:
        run_id, of_run = claim.run.id, bulk_items.c.run == claim.run.id
        with self._engine.begin() as connection:
            # First: it locks the run's row against another process that resumes it.
            change = sql_update(bulk_runs).where(self._is_ours(claim)).values(updated_at=Now())
            if connection.execute(change).rowcount != 1:
                raise LeaseLost(f"another process has resumed run {run_id}, or ended it")
            if finished is not None:
                _finish(connection, run_id, finished)
            if is_exhausted:
                was = bulk_items.c.state
                now = case((was == ItemState.BEGUN, ItemState.DONE), else_=ItemState.GONE)
                connection.execute(
                    sql_update(bulk_items).where(of_run, was.in_(_OPEN)).values(state=now)
                )
            self._recount(connection, run_id)
            left = select(func.count()).where(of_run, bulk_items.c.state.in_(_OPEN))
            is_done = connection.execute(left).scalar_one() == 0
            state = RunState.DONE if is_done else RunState.STOPPED
            set_run(connection, run_id, **{**_STOPPED, "state": state, "problem": problem})
        return self.run(run_id)

    def _recount(self, connection: Connection, run_id: int) -> None:
        """Count the items: a write whose commit was unknown may have been counted twice."""
        query = select(bulk_items.c.state, func.count()).where(bulk_items.c.run == run_id)
        rows = connection.execute(query.group_by(bulk_items.c.state))
        counts: dict[str, int] = dict(tuple(row) for row in rows)
        names = ("done", "refused", "gone")
        set_run(connection, run_id, **{name: counts.get(name, 0) for name in names})

    def _stop_interrupted(self, connection: Connection, wanted: BulkRun) -> None:
        """A run whose process is gone keeps no other run of its subject waiting."""
        over = and_(_runs.subject == wanted.action.subject, _IS_OVER)
        connection.execute(sql_update(bulk_runs).where(over).values(_STOPPED))

    def _is_ours(self, claim: RunClaim) -> ColumnElement[bool]:
        return and_(
            _runs.id == claim.run.id, _runs.lease == claim.lease, _runs.state == RunState.RUNNING
        )

    def _read(self, which: ColumnElement[bool], limit: int) -> list[BulkRun]:
        is_leased = func.coalesce(_IS_LEASED, False).label("is_leased")
        query = select(bulk_runs, is_leased).where(which).order_by(_runs.id.desc()).limit(limit)
        with self._engine.connect() as connection:
            return [_run(row) for row in connection.execute(query).mappings()]


_STOPPED: dict[str, Any] = {
    "state": RunState.STOPPED,
    "lease": None,
    "lease_until": None,
    "updated_at": Now(),
    "ended_at": Now(),
}


def _finish(connection: Connection, run_id: int, finished: Finished) -> None:
    number, refusal = finished
    if refusal is None:
        _set_item(connection, run_id, number, state=ItemState.DONE)
        return
    _set_item(connection, run_id, number, state=ItemState.REFUSED, **refusal_columns(refusal))


def _set_item(connection: Connection, run_id: int, number: int, **values: Any) -> None:
    of_it = and_(bulk_items.c.run == run_id, bulk_items.c.number == number)
    connection.execute(sql_update(bulk_items).where(of_it).values(values))


def _note(connection: Connection, by: By, what: str, run: BulkRun) -> None:
    details = (
        f"run {run.id}: {run.action}, {run.left} of {run.total}; {json.dumps(dict(run.filter))}"
    )
    connection.execute(
        insert(audit).values(
            at=Now(),
            operator=by.operator,
            what=what,
            merchant_id="",
            order_id="",
            details=details[:512],
            reason=by.reason,
        )
    )


def _busy(active: BulkRun | None) -> str:
    which = "another run" if active is None else str(active)
    remedy = "" if active is None else f", or stop it (pos-gateway runs stop {active.id})"
    return f"{which} is at work on them at this moment; wait until it has ended{remedy}"


def _why_not_started(run: BulkRun, total: int | None, refused: int | None) -> str:
    if run.state is RunState.DONE:
        return f"{run} has ended; there is nothing left to resume"
    if run.is_leased:
        return f"{run} is at work already; if its process died, try again in {LEASE:g} s"
    if run.state is RunState.PREPARING:
        return f"{run} is not previewed yet"
    if (run.total, run.refused) != (total, refused) and total is not None:
        return f"the preview of {run} has other numbers than were confirmed; look at it again"
    return f"{run} was started at this moment by another process"


def _run(row: RowMapping) -> BulkRun:
    values = dict(row)
    for name in ("subject", "lease", "lease_until"):
        del values[name]
    return BulkRun(
        **{
            **values,
            "action": BulkAction(row["action"]),
            "state": RunState(row["state"]),
            "filter": json.loads(row["filter"]),
            "options": json.loads(row["options"]),
            "is_leased": bool(row["is_leased"]),
        }
    )
