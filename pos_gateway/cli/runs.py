"""``pos-gateway runs``: the bulk runs of ``dlq`` and ``orders resolve``."""

import json
from typing import TYPE_CHECKING, Any

import click

from pos_gateway.cli import bulk, options, output
from pos_gateway.cli.database import database
from pos_gateway.cli.groups import Group
from pos_gateway.runtime.clock import shown

if TYPE_CHECKING:
    from pos_gateway.administration.bulk.run import BulkRun, RefusalCount

a_run = click.argument("run_id", metavar="RUN", type=options.LIMIT)


@click.group(cls=Group)
def runs() -> None:
    """Bulk runs: what dlq replay, dlq discard and orders resolve do to many at once.

    A run that was stopped, or whose process died, is resumed where it was.
    """


@runs.command("list", short_help="List runs, and how far they are.")
@options.limit
@options.as_json_lines
def list_(limit: int, as_json: bool) -> None:
    """List runs, the last one first: whose, what, and how far.

    \b
    Examples:
      pos-gateway runs list
      pos-gateway runs list --json | jq 'select(.state == "interrupted")'
    """
    from pos_gateway.administration.bulk.store import BulkStore

    with database() as engine:
        records = [_record(each) for each in BulkStore(engine).runs(limit)]
    if as_json:
        for record in records:
            output.json_line(record)
        return
    columns = (
        "run",
        "operator",
        "action",
        "state",
        "done",
        "refused",
        "gone",
        "left",
        "started_at",
    )
    rows = [[record[name] for name in columns] for record in records]
    output.table([name.removesuffix("_at").upper() for name in columns], rows)


@runs.command(short_help="Show one, with what was refused.")
@a_run
@options.as_json_object
def show(run_id: int, as_json: bool) -> None:
    """Show a run: its filter, its options, how far it is, and what was refused, by reason.

    \b
    Examples:
      pos-gateway runs show 12
    """
    from pos_gateway.administration.bulk.store import BulkStore

    with database() as engine:
        store = BulkStore(engine)
        record = _record(store.run(run_id))
        refusals = [_refused(each) for each in store.refusals(run_id)]
    if as_json:
        output.json_document({**record, "refusals": refusals})
        return
    flat = {name: json.dumps(each) if isinstance(each, dict) else each for name, each in record.items()}  # fmt: skip
    output.table(("FIELD", "VALUE"), flat.items())
    if refusals:
        rows = [(each["count"], each["why"], ", ".join(each["examples"])) for each in refusals]
        output.table(("REFUSED", "BECAUSE", "FOR EXAMPLE"), rows)


@runs.command(short_help="Have one stop after the present item.")
@a_run
@options.by_operator
def stop(run_id: int, operator: str) -> None:
    """Have a run stop, wherever its process is, after the letter or order that it is at.

    \b
    Examples:
      pos-gateway runs stop 12
    """
    from pos_gateway.administration.bulk.store import BulkStore

    with database() as engine:
        run = BulkStore(engine).stop(run_id, operator=operator)
    click.echo(
        f"run {run.id} is {run.said}: {run.done} done, {run.refused} refused, {run.left} left"
    )


@runs.command(short_help="Go on with one that was stopped.")
@a_run
@click.option("--json", "as_json", is_flag=True, help="JSON Lines: the outcome of each.")
@options.by_operator
def resume(run_id: int, as_json: bool, operator: str) -> None:
    """Go on with a run that was stopped, or whose process died. What is done is not done again.

    \b
    Examples:
      pos-gateway runs resume 12

    Exit code: 0; 1 if anything was refused, or the run was stopped; or 130 after Ctrl-C.
    """
    from pos_gateway.administration.bulk.run import BulkAction

    bulk.resume(run_id, list(BulkAction), operator=operator, as_json=as_json)


def _record(run: "BulkRun") -> dict[str, Any]:
    return {
        "run": run.id,
        "operator": run.operator,
        "action": run.action.value,
        "state": run.said,
        "total": run.total,
        "done": run.done,
        "refused": run.refused,
        "gone": run.gone,
        "left": run.left,
        "filter": dict(run.filter),
        "options": dict(run.options),
        "stopped_by": run.stopped_by,
        "problem": run.problem,
        "created_at": shown(run.created_at),
        "started_at": shown(run.started_at),
        "ended_at": shown(run.ended_at),
    }


def _refused(each: "RefusalCount") -> dict[str, Any]:
    return {"count": each.count, "why": each.kind, "examples": list(each.examples)}
