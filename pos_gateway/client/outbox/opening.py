"""Connects to the backend's database by its URL, with the driver that the backend has installed."""

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pos_gateway.domain.errors import FieldError, InvalidSettings
from pos_gateway.runtime.urls import mask_url

#: Opens a DB-API connection.
Connect = Callable[[], Any]

#: Seconds to connect where the URL has no ``connect_timeout``, and PyMySQL's maximum; seconds to wait for MySQL's
#: reply, which publishing does not count for.
_CONNECT, _MAX_CONNECT, _ANSWER = 5, 31_536_000, 30
#: A peer that vanished silently is found after 15 s instead of the kernel's two hours; and, when a
#: statement was sent to it, of the kernel's quarter of an hour, for which no keepalive is sent.
_POSTGRESQL = {
    "connect_timeout": _CONNECT,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,  # milliseconds
}
_NAME = "POS_GATEWAY_OUTBOX_URL"
_PLACE = "has no readable host and port; in a password / is written %2F, @ %40, : %3A, % %25, a blank %20"
#: What libpq reads in no URL, and then quotes with what is around it: the password.
_QUOTED = re.compile(r"%(?![0-9A-Fa-f]{2})|%00|\s")


def connector(database: str | Connect) -> Connect:
    """What opens a connection: the function given, or one for the URL.

    Args:
        database: a function, or a URL as SQLAlchemy writes it: ``postgresql://`` (psycopg),
            ``mysql://`` (PyMySQL), ``sqlite:///file``.

    Raises:
        InvalidSettings: the URL is invalid, or its driver is not installed.
    """
    if not isinstance(database, str):
        return partial(_own, database)
    scheme, _, rest = database.partition("://")
    kind, _, driver = scheme.partition("+")
    match kind, driver:
        case "postgresql" | "postgres", "" | "psycopg":
            _require_readable(rest, database)
            return partial(
                _library("psycopg", "psycopg[binary]").connect,
                f"postgresql://{rest}",
                prepare_threshold=None,  # a pooler may run each transaction in another session
                **_unsaid(rest),
            )
        case "postgresql" | "postgres", "psycopg2":
            _require_readable(rest, database)
            return partial(
                _library("psycopg2", "psycopg2").connect, f"postgresql://{rest}", **_unsaid(rest)
            )
        case "mysql" | "mariadb", "" | "pymysql":
            return partial(_library("pymysql", "PyMySQL").connect, **_mysql(database))
        case "sqlite", "":
            return partial(_library("sqlite3", "").connect, _file(database), timeout=_CONNECT)
    problem = "is no postgresql://, mysql:// or sqlite:/// URL; give Relay a function that connects"
    raise InvalidSettings([FieldError(_NAME, problem, mask_url(database))])


def _own(connect: Connect) -> Any:
    """A connection that is the relay's alone.

    One of SQLAlchemy's pool would go back to the backend with the relay's settings: in autocommit.
    """
    connection = connect()
    if not hasattr(connection, "driver_connection"):
        return connection
    driver = connection.driver_connection
    connection.detach()
    return driver


def _library(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        problem = f"needs the package {name}; pip install '{package}'"
        raise InvalidSettings([FieldError(_NAME, problem)]) from error


def _require_readable(rest: str, url: str) -> None:
    """Raises InvalidSettings where libpq's error, which is logged, would have a part of the password."""
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if place.count("@") > 1 or _QUOTED.search(rest):
        raise InvalidSettings([FieldError(_NAME, _PLACE, mask_url(url))])


def _unsaid(rest: str) -> dict[str, int]:
    """psycopg's options that the URL does not have."""
    said = dict(parse_qsl(rest.partition("?")[2]))
    return {name: value for name, value in _POSTGRESQL.items() if name not in said}


def _mysql(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    try:
        port = parts.port or 3306
    except ValueError:
        raise InvalidSettings([FieldError(_NAME, _PLACE, mask_url(url))]) from None
    said = {name: value for name, value in parse_qsl(parts.query) if name != "charset"}
    place = {"unix_socket": said["unix_socket"]} if "unix_socket" in said else {}
    connect = said.get("connect_timeout", str(_CONNECT))
    if not re.fullmatch(r"[0-9]{1,8}", connect) or not 1 <= int(connect) <= _MAX_CONNECT:
        problem = f"connect_timeout must be whole seconds, from 1 to {_MAX_CONNECT}"
        raise InvalidSettings([FieldError(_NAME, problem, connect)])
    return {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")),
        "charset": "utf8mb4",
        "connect_timeout": int(connect),
        "read_timeout": _ANSWER,
        "write_timeout": _ANSWER,
        **place,
    }


def _file(url: str) -> str:
    file = unquote(url.removeprefix("sqlite://").removeprefix("/").partition("?")[0])
    if not file or file == ":memory:":
        problem = "is a database in memory, which no other process or connection sees; name a file"
        raise InvalidSettings([FieldError(_NAME, problem, url)])
    return file
