"""``pos-gateway tokens``: who may use the HTTP server."""

import difflib
import os
import sys
from typing import TYPE_CHECKING

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.database import token_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.groups import Group
from pos_gateway.domain.errors import UnknownToken
from pos_gateway.runtime.clock import shown
from pos_gateway.tokens.token import MAX_RATE, NAMES, Role, Token, is_name

if TYPE_CHECKING:
    from pos_gateway.tokens.store import TokenStore

#: Headings narrow enough for a terminal.
_COLUMNS = {
    "NAME": "name",
    "ROLE": "role",
    "RATE": "rate",
    "CREATED": "created_at",
    "LAST_USED": "used_at",
    "REVOKED": "revoked_at",
}


def _name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not is_name(value):
        raise click.BadParameter(NAMES)  # without the value: it may be a token
    return value


a_name = click.argument("name", metavar="NAME", callback=_name)


@click.group(cls=Group)
def tokens() -> None:
    """Administer the access tokens of the HTTP server: a program or a person each has its own.

    \b
    Roles:
      backend   submits and cancels orders, reads orders and events
      viewer    reads everything; personal data is masked
      operator  all of this; resolves, replays, pauses; can have personal data shown

    The database has a token's SHA-256 alone. Servers see a change within seconds.
    """


@tokens.command(short_help="Make one, and print it once.")
@a_name
@click.option(
    "--role",
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="What it allows.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, MAX_RATE),
    metavar="N",
    help="Requests a second, in each server process. Default: the server's.",
)
@options.by_operator
def create(name: str, role: str, rate: int | None, operator: str) -> None:
    """Make a token for the program or person NAME, and print it, alone, on standard output.

    It is shown this once. A name is used once, also after its token is revoked: the audit has what
    each one did.

    \b
    Examples:
      pos-gateway tokens create shop --role backend
      pos-gateway tokens create shop-2 --role backend --rate 50 > shop.token
      curl -H "Authorization: Bearer $(cat shop.token)" http://127.0.0.1:8080/v1/events

    Exit code: 0, or 1 if a token has, or had, this name.
    """
    with token_store() as store:
        store.create(name, Role(role), rate, operator=operator, show=_show)
    output.notice("it is shown this once: the database has its SHA-256 alone. To use it:")
    if Role(role) is not Role.BACKEND:
        output.notice("  log in with it on the operations page of pos-gateway serve, or")
    output.notice('  curl -H "Authorization: Bearer TOKEN" http://127.0.0.1:8080/v1/events')


def _show(token: str) -> None:
    if sys.stdout is None:  # closed; click would write nothing
        raise Failure("no token was created: standard output is closed")
    try:
        click.echo(token)
    except OSError as error:
        # Python flushes at its end what could not be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Failure(f"no token was created: it cannot be written: {error.strerror}") from None


@tokens.command("list", short_help="List them, and when each was last used.")
@options.as_json_lines
def list_(as_json: bool) -> None:
    """List every token by name, revoked ones too. A use is in LAST_USED after a minute or so.

    \b
    Examples:
      pos-gateway tokens list
      pos-gateway tokens list --json | jq -r 'select(.used_at == null) | .name'
    """
    with token_store() as store:
        records = [_record(token) for token in store.list()]
    if as_json:
        for record in records:
            output.json_line(record)
        return
    rows = [[record[name] for name in _COLUMNS.values()] for record in records]
    output.table(tuple(_COLUMNS), rows, style=lambda row: "dim" if row[-1] else "")


@tokens.command(short_help="Have servers refuse it.")
@a_name
@options.by_operator
def revoke(name: str, operator: str) -> None:
    """Revoke the token NAME: every server refuses it within seconds, and for good.

    \b
    Example:
      pos-gateway tokens revoke shop

    Exit code: 0, also if it is revoked already, or 1 if no token has this name.
    """
    with token_store() as store:
        try:
            token = store.revoke(name, operator=operator)
        except UnknownToken as error:
            raise Failure(f"{error}{_advice(name, store)}") from error
    click.echo(f"token {name!r} is revoked since {shown(token.revoked_at)}")


def _record(token: Token) -> dict[str, object]:
    return {
        "name": token.name,
        "role": token.role.value,
        "rate": token.rate,
        "created_at": shown(token.created_at),
        "used_at": shown(token.used_at),
        "revoked_at": shown(token.revoked_at),
    }


def _advice(name: str, store: "TokenStore") -> str:
    near = difflib.get_close_matches(name, [token.name for token in store.list()], n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
