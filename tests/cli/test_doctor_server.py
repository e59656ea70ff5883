"""``pos-gateway doctor`` asks a real server, as a backend does."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from pos_gateway.cli import doctor_server
from pos_gateway.cli.doctor_server import check_server
from pos_gateway.cli.findings import CheckResult, Severity
from pos_gateway.http_client import orders as http_orders
from pos_gateway.runtime.clock import SystemClock
from pos_gateway.settings import Settings
from pos_gateway.tokens.token import new_token
from testkit.patience import PATIENCE
from tests.cli.conftest import Program
from tests.server.lab import Server, migrated, serving
from tests.server.scripted import Scripted, endless


class Ahead(SystemClock):
    """Of the server's, by a minute."""

    def now(self) -> datetime:
        return super().now() + timedelta(minutes=1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine's server has time for a handshake, which has a third of it, and to look an order up."""
    monkeypatch.setattr(doctor_server, "_TIMEOUT", PATIENCE)
    monkeypatch.setattr(http_orders, "_CONNECT", PATIENCE)


@pytest.fixture
def server(broker_url: str, database_url: str, tmp_path: Path) -> Iterator[Server]:
    with serving(broker_url, migrated(database_url), tmp_path / "log") as server:
        yield server


def found(url: str, token: str, clock: SystemClock | None = None) -> list[CheckResult]:
    settings = Settings.model_validate({"http_url": url, "token": token})
    return list(check_server(settings, clock or SystemClock()))


def test_nothing_is_asked_without_a_url(program: Program) -> None:
    assert list(check_server(Settings())) == []
    done = program.invoke("doctor", "--server")
    assert done.exit_code == 2
    assert "set POS_GATEWAY_HTTP_URL" in done.stderr


def test_a_server_that_is_well_and_a_token_that_is_not(
    program: Program, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    [well] = found(server.url + "/", server.token)
    assert well.level is Severity.OK
    assert well.what == f"server: {server.url}/ accepts the token"
    [unknown] = found(server.url, new_token())
    assert unknown.level is Severity.FAIL
    assert "no valid token is like this one" in unknown.what
    assert unknown.advice == "pos-gateway tokens list"
    _, clock = found(server.url, server.token, Ahead())
    assert clock.level is Severity.WARN
    assert " s behind this one's: orders expire by it" in clock.what
    settings = {"POS_GATEWAY_HTTP_URL": server.url, "POS_GATEWAY_TOKEN": server.token}
    done = program.invoke("doctor", "--server", **settings)
    assert done.exit_code == 0
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["settings:", "server:"]
    server.stop()
    monkeypatch.setattr(doctor_server, "_TIMEOUT", 5.0)  # it is asked until then
    [away] = found(server.url, server.token)
    assert away.level is Severity.FAIL
    assert "connection refused" in away.what


def test_a_server_without_its_broker_takes_no_orders(database_url: str, tmp_path: Path) -> None:
    lacking = serving(
        "amqp://127.0.0.1:1//", migrated(database_url), tmp_path / "log", is_ready=False
    )
    with lacking as server:
        accepts, lacks = found(server.url, server.token)
    assert accepts.level is Severity.OK
    assert lacks.level is Severity.FAIL
    assert lacks.what == f"server: {server.url} takes no orders"


UNKNOWN = (404, {}, b"""{"status": 404, "code": "unknown_order", "detail": "it is not known"}""")


@pytest.mark.parametrize(
    ("second", "warning"),
    [
        ((200, {"Date": "nonsense"}, b"<html>"), None),
        ((200, {"Date": "Sat, 31 Jan 2026 11:00:00"}, b"[" * 60_000), None),
        ((200, {"Date": "Sat, 31 Jan 2026 11:00:00 +99999999999999"}, b"{}"), None),
        (endless(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 9000), "ReplyTooLarge at its second request"),
    ],
)
def test_a_second_reply_that_is_a_proxys(second: Any, warning: str | None) -> None:
    server = Scripted(UNKNOWN, second)
    try:
        accepts, *others = found(server.url, new_token())
    finally:
        server.close()
    assert accepts.level is Severity.OK
    assert [each.what for each in others] == (
        [f"server: {server.url}: {warning}"] if warning else []
    )


@pytest.mark.parametrize(
    ("days", "level", "expected"),
    [
        (30, Severity.OK, "accepts the token"),
        (3, Severity.WARN, "its certificate ends at 2"),
        (-1, Severity.FAIL, "certificate has expired"),
    ],
)
def test_a_certificate_that_ends_soon_and_one_that_has(
    broker_url: str,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    days: int,
    level: Severity,
    expected: str,
) -> None:
    authority, ends = trustme.CA(), datetime.now(UTC) + timedelta(days=days)
    issued = authority.issue_cert("127.0.0.1", not_before=ends - timedelta(90), not_after=ends)
    pem, trusted = tmp_path / "server.pem", tmp_path / "ca.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.cert_pem.write_to_path(str(trusted))
    flags = ("--certificate", str(pem), "--key", str(pem))
    log = tmp_path / "log"
    with serving(broker_url, migrated(database_url), log, None, *flags, is_ready=False) as server:
        url = server.url.replace("http:", "https:")
        [untrusted] = found(url, server.token)
        assert "its certificate is not trusted" in untrusted.what
        assert "REQUESTS_CA_BUNDLE" in untrusted.advice
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(trusted))
        findings = found(url, server.token)
    assert [each.level for each in findings if expected in each.what] == [level]
