"""``pos-gateway outbox``: the outbox in a backend's database. With argparse, as the base install has.

A backend's machine has no click: its relay is the one command that runs there.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from types import FrameType

from pos_gateway.cli.text import json_text, printable
from pos_gateway.client.outbox.opening import connector
from pos_gateway.client.outbox.relay import Relay
from pos_gateway.client.outbox.store import Store
from pos_gateway.client.outbox.table import Dialect, ddl
from pos_gateway.client.protocols import BlockingClient
from pos_gateway.domain.errors import FieldError, InvalidSettings, PosGatewayError
from pos_gateway.settings import PREFIX, is_set, setting

_CONFIGURATION, _INTERRUPTED = 78, 130
_COLUMNS = ("id", "action", "merchant_id", "order_id", "age", "attempts", "state", "reason")


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except InvalidSettings as error:
        return _fail(error.errors, _CONFIGURATION)
    except PosGatewayError as error:
        return _fail([error], 1)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001
        # Any error of the database's driver, which is the backend's: a sentence and no traceback.
        lines = " ".join(str(error).split())
        return _fail([f"the outbox's database: {type(error).__name__}: {lines}"], 1)


def _fail(sentences: Sequence[object], exit_code: int) -> int:
    for each in sentences:
        print(f"pos-gateway: {printable(each)}", file=sys.stderr)  # noqa: T201
    return exit_code


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _ddl(options: argparse.Namespace) -> int:
    for statement in ddl(options.dialect):
        _say(f"{statement};")
    return 0


def _relay(options: argparse.Namespace) -> int:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    with closing(_client(options)) as client:
        relay = Relay(client, _url(options), batch=options.batch, poll=options.poll)
        if options.once:
            _say(f"{relay.drain()} submitted")
            return int(relay.lag().rows > 0)

        signals = signal.SIGTERM, signal.SIGINT

        def stop(_number: int, _frame: FrameType | None) -> None:
            relay.stop(0)
            for each in signals:  # a database that does not answer may keep the relay for ever
                signal.signal(each, signal.SIG_DFL)

        for each in signals:
            signal.signal(each, stop)
        relay.run()
    return 0


def _list(options: argparse.Namespace) -> int:
    with closing(_store(options)) as store:
        rows = store.listed(refused_only=not options.all, limit=options.limit)
    if not options.json:
        _say("\t".join(_COLUMNS))
    for row in rows:
        state = "refused" if row.is_refused else "retry" if row.reason else "waiting"
        cells = (*row[:4], round(row.age, 3), row.attempts, state, row.reason)
        if options.json:
            _say(json_text(dict(zip(_COLUMNS, cells, strict=True))))
        else:
            _say("\t".join("" if cell is None else printable(cell) for cell in cells))
    return 0


def _lag(options: argparse.Namespace) -> int:
    with closing(_store(options)) as store:
        lag = store.lag()
    if options.json:
        _say(json_text(lag._asdict()))
    else:
        _say(f"{lag.rows} waiting, the oldest for {lag.seconds:.1f} s; {lag.refused} refused")
    return 0


def _retry(options: argparse.Namespace) -> int:
    if options.all == bool(options.ids):
        return _fail(["name the rows' ids, or all of them with --all"], 2)
    with closing(_store(options)) as store:
        number = store.retry(None if options.all else options.ids)
    _say(f"{number} to be submitted again")
    return 0 if options.all or number == len({*options.ids}) else 1


def _discard(options: argparse.Namespace) -> int:
    with closing(_store(options)) as store:
        number = store.discard(options.ids)
    _say(f"{number} discarded")
    return 0 if number == len({*options.ids}) else 1


def _url(options: argparse.Namespace) -> str:
    found: str | None = setting("outbox_url", options.database_url)
    if found is None:
        problem = "is not set, and no --database-url is given: the backend's database"
        raise InvalidSettings([FieldError(PREFIX + "OUTBOX_URL", problem)])
    return found


def _store(options: argparse.Namespace) -> Store:
    return Store(connector(_url(options))())


def _client(options: argparse.Namespace) -> BlockingClient:
    """AMQP's, unless a URL of the HTTP server is given, or alone in the environment."""
    over_http = options.http_url or (
        not options.broker_url and not is_set("broker_url") and is_set("http_url")
    )
    if over_http:
        from pos_gateway.http_client import HttpOrderClient

        return HttpOrderClient(options.http_url)
    from pos_gateway.client.orders import OrderClient

    return OrderClient(options.broker_url)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pos-gateway outbox",
        description="Submit what a backend's database commits: docs/outbox.md.",
        epilog="The database is POS_GATEWAY_OUTBOX_URL, the backend's and not the gateway's: "
        "postgresql://, mysql:// or sqlite:///file.",
    )
    commands = parser.add_subparsers(title="Commands", metavar="COMMAND", required=True)

    each = _command(commands, "ddl", _ddl, "Print the statements that create the table.", (
        "pos-gateway outbox ddl --dialect postgresql | psql backend",
    ))  # fmt: skip
    each.add_argument("--dialect", required=True, choices=[str(each) for each in Dialect])

    each = _command(commands, "relay", _relay, "Submit committed orders, until SIGTERM; a second one ends it at once.", (
        "pos-gateway outbox relay --broker-url amqp://guest:guest@localhost:5672//",
        "pos-gateway outbox relay --http-url https://orders.example.com   # with POS_GATEWAY_TOKEN",
        "pos-gateway outbox relay --once                                  # what there is, and end",
    ))  # fmt: skip
    _database(each)
    way = each.add_mutually_exclusive_group()
    way.add_argument("--broker-url", metavar="URL", help="RabbitMQ's; or POS_GATEWAY_BROKER_URL")
    way.add_argument(
        "--http-url", metavar="URL", help="the HTTP server's; or POS_GATEWAY_HTTP_URL alone"
    )
    each.add_argument("--once", action="store_true", help="submit what there is; 1 if some is left")
    each.add_argument(
        "--batch", type=_number(1, 1000), default=200, metavar="N", help="rows at once (200)"
    )
    each.add_argument(
        "--poll", type=_seconds, default=1.0, metavar="SECONDS",
        help="between two looks at the table, where PostgreSQL does not notify (1)",
    )  # fmt: skip

    each = _command(commands, "list", _list, "Show refused rows, with the reason.", (
        "pos-gateway outbox list",
        "pos-gateway outbox list --all --json | jq .order_id",
    ))  # fmt: skip
    _database(each)
    each.add_argument("--all", action="store_true", help="waiting rows, too")
    each.add_argument("--limit", type=_number(1, 1_000_000), default=1000, metavar="N")
    each.add_argument("--json", action="store_true", help="a JSON object a line")

    each = _command(commands, "lag", _lag, "Say how far relays are behind.", (
        "pos-gateway outbox lag --json",
    ))  # fmt: skip
    _database(each)
    each.add_argument("--json", action="store_true")

    each = _command(commands, "retry", _retry, "Submit refused rows again.", (
        "pos-gateway outbox retry 4711 4712",
        "pos-gateway outbox retry --all",
    ))  # fmt: skip
    _database(each)
    each.add_argument("ids", nargs="*", type=_number(1, 2**63 - 1), metavar="ID")
    each.add_argument("--all", action="store_true")

    each = _command(commands, "discard", _discard, "Remove refused rows for good.", (
        "pos-gateway outbox discard 4711",
    ))  # fmt: skip
    _database(each)
    each.add_argument("ids", nargs="+", type=_number(1, 2**63 - 1), metavar="ID")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    examples: Sequence[str],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog="\n".join(["Examples:", *(f"  {each}" for each in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=run)
    return parser


def _database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database-url", metavar="URL",
        help="the backend's database; better POS_GATEWAY_OUTBOX_URL, which no list of processes shows",
    )  # fmt: skip


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"is {text!r}; should be from {least} to {most}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"is {text!r}; should be from 0.01 to 3600 seconds")
    return seconds
