"""Stores previews: runs that no operator has confirmed yet, with the items that they would act on."""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, insert, select
from sqlalchemy import delete as sql_delete
from sqlalchemy import update as sql_update

from pos_gateway.administration.bulk.run import BulkAction, ItemState, NewItem, RunState, Subject
from pos_gateway.administration.refusal import Refusal
from pos_gateway.database.clock import Now
from pos_gateway.database.schema import bulk_items, bulk_runs

#: Items written in one transaction.
BATCH = 1_000
#: Seconds that a preview waits for its operator.
UNCONFIRMED = 3_600.0
#: Seconds without a write after which the process of a preview has died.
SILENT = 120.0
#: The states of a run that was never confirmed.
UNCONFIRMED_STATES = (RunState.PREPARING, RunState.PREVIEWED)

_runs = bulk_runs.c


class Previews:
    """Writes and removes previews. Safe from threads. Raises SQLAlchemyError when the database is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prepare(
        self,
        action: BulkAction,
        *,
        operator: str,
        filter_: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> int:
        """Store a run without items, which ``fill`` writes; returns its id.

        Removes the previews that were not confirmed within an hour.
        """
        old = _runs.updated_at < Now() - UNCONFIRMED
        self._remove(and_(_runs.state.in_(UNCONFIRMED_STATES), old))
        values = {
            "operator": operator,
            "action": action,
            "subject": action.subject,
            "filter": json.dumps(filter_),
            "options": json.dumps(options),
            "state": RunState.PREPARING,
            **dict.fromkeys(("total", "done", "refused", "gone"), 0),
            "created_at": Now(),
            "updated_at": Now(),
        }
        with self._engine.begin() as connection:
            made = insert(bulk_runs).values(values).returning(_runs.id)
            return int(connection.execute(made).scalar_one())

    def fill(self, run_id: int, items: Iterable[NewItem]) -> None:
        """Write the items of a run that is being prepared: an operator can confirm it then."""
        total = refused = 0
        found = iter(items)
        while batch := list(islice(found, BATCH)):
            rows = [_row(run_id, total + n, item) for n, item in enumerate(batch, 1)]
            total += len(rows)
            refused += sum(row["state"] is ItemState.REFUSED for row in rows)
            with self._engine.begin() as connection:
                connection.execute(insert(bulk_items), rows)
                set_run(connection, run_id, total=total, refused=refused, updated_at=Now())
        with self._engine.begin() as connection:
            set_run(connection, run_id, state=RunState.PREVIEWED, updated_at=Now())

    def is_being_made(self, subject: Subject) -> bool:
        """Whether a process writes a preview of this subject, and has written lately."""
        # Not after now either: the database's clock was set back.
        lately = _runs.updated_at.between(Now() - SILENT, Now() + SILENT)
        of_it = and_(_runs.subject == subject, _runs.state == RunState.PREPARING)
        query = select(_runs.id).where(of_it, _runs.problem.is_(None), lately).limit(1)
        with self._engine.connect() as connection:
            return connection.scalar(query) is not None

    def fail(self, run_id: int, problem: str) -> None:
        """Record why a run's items could not all be written: it can never be confirmed."""
        of_it = and_(_runs.id == run_id, _runs.state == RunState.PREPARING)
        values = {"problem": problem, "updated_at": Now()}
        with self._engine.begin() as connection:
            connection.execute(sql_update(bulk_runs).where(of_it).values(values))

    def discard(self, run_id: int) -> None:
        """Remove a run that was not confirmed; any other stays."""
        self._remove(and_(_runs.id == run_id, _runs.state.in_(UNCONFIRMED_STATES)))

    def _remove(self, which: ColumnElement[bool]) -> None:
        with self._engine.begin() as connection:
            # Locked: an operator may confirm one at this moment.
            ids = connection.scalars(select(_runs.id).where(which).with_for_update()).all()
            if ids:
                connection.execute(sql_delete(bulk_items).where(bulk_items.c.run.in_(ids)))
                connection.execute(sql_delete(bulk_runs).where(_runs.id.in_(ids), which))


def set_run(connection: Connection, run_id: int, **values: Any) -> None:
    """Write these columns of a run."""
    connection.execute(sql_update(bulk_runs).where(_runs.id == run_id).values(values))


def refusal_columns(refusal: Refusal | None) -> dict[str, str | None]:
    """The columns of an item that say why it is refused."""
    if refusal is None:
        return {"why": None, "kind": None}
    return {"why": refusal.why[:512], "kind": refusal.kind[:256]}


def _row(run_id: int, number: int, item: NewItem) -> dict[str, Any]:
    state = ItemState.PENDING if item.refusal is None else ItemState.REFUSED
    return {
        "run": run_id,
        "number": number,
        "mark": item.mark,
        "letter": item.letter,
        "merchant_id": item.merchant_id,
        "order_id": item.order_id,
        "state": state,
        **refusal_columns(item.refusal),
    }
