"""Alerts of a gateway in trouble, at a receiver that is well, or is not; two servers; no secret in a log."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, insert, update
from standardwebhooks import Webhook
from structlog.testing import capture_logs

from pos_gateway.alerts import sender as sending
from pos_gateway.alerts import watch as watching
from pos_gateway.alerts.condition import RULES, Condition, Finding
from pos_gateway.alerts.looking import look
from pos_gateway.alerts.message import trial_message
from pos_gateway.alerts.rules import Alert, AlertState, decide
from pos_gateway.alerts.sender import AlertSender
from pos_gateway.alerts.store import AlertStore
from pos_gateway.cli.root import root
from pos_gateway.database.schema import alert_claim, alerts, audit
from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.reports.report import EVENTS, SYNCHRONOUS, Trouble
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.server.site import Site
from pos_gateway.settings import Settings, explain
from tests.alerts.conftest import SECRET, put_order, watch_of
from tests.planting import ROOT
from tests.reports.lab import Reports
from tests.reports.test_recent_outcomes import record
from tests.server.lab import SOON
from tests.server.scripted import Asked, Scripted, endless, nothing, silence

OK = (204, {}, b"")
#: What workers report of all else, if nothing is wrong.
WELL: dict[str, Any] = {"events_age": 0.0, "queues": {"orders": 0, "orders.dead": 0}}
SILENT = Trouble("m1", breaker="open", breaker_for=400.0, agreed=10, waiting=3, parked=4)


def sent(asked: Asked) -> Any:
    """The message, if its signature is right."""
    headers = {name.lower(): value for name, value in asked.headers.items()}
    return Webhook(SECRET).verify(asked.body, headers)


def make_due(engine: Engine) -> None:
    """As if the pause before the next attempt were over."""
    with engine.begin() as connection:
        connection.execute(update(alerts).values(next_at=0.0))


def expire_claim(engine: Engine, until: float = 0.0) -> None:
    with engine.begin() as connection:
        connection.execute(update(alert_claim).values(until=until))


def test_what_is_wrong_is_found(engine: Engine, reports: Reports) -> None:
    now = time.time()
    again = {"updated_at": now, "doubt_since": now, "in_doubt_since": now - 600}
    put_order(engine, "o1", "m2", "in_doubt", **again)
    put_order(engine, "o2", "m2", "in_doubt", updated_at=now - 600)
    put_order(engine, "o3", "m3", "in_doubt", updated_at=now, doubt_since=now - 10)
    put_order(engine, "o4", "m4", "failed", updated_at=now, reason_code="token")
    put_order(engine, "o5", "m5", "failed", updated_at=now - 3600, reason_code="token")
    put_order(engine, "o6", "m6", "failed", updated_at=now, reason_code="http_400")
    put_order(engine, "o7", "m7", "failed", updated_at=now, reason_code="http_401")
    put_order(engine, "o8", "m8", "new", updated_at=now, reason_code="credential_refused")
    for state in ("new", "expired"):  # its token endpoint is late
        put_order(engine, f"t-{state}", "m10", state, updated_at=now, reason_code="token")
    record(engine, "m9", *["failed"] * 3, code="http_404")
    found = look(engine, reports.view)
    assert [each.subject for each in found[Condition.NO_WORKER]] == ["workers"]
    assert "breaker_open" not in found
    reports.worker("w1").report(
        SILENT,
        SILENT._replace(merchant_id="young", breaker_for=200.0),
        SILENT._replace(merchant_id="paused", agreed=0),
        SILENT._replace(merchant_id="tried", breaker="half_open"),
        queues={"orders": 0, "orders.dead": 3},
        events_age=31.0,
    )
    found = look(engine, reports.view)
    assert {what: [each.subject for each in those] for what, those in found.items()} == {
        "no_worker": [],
        "breaker_open": ["m1", "tried"],
        "orders_in_doubt": ["m2"],
        "orders_overdue": [],
        "orders_contradicted": [],
        "dead_letters": ["orders.dead"],
        "queues_unknown": [],
        "credential_refused": ["m4", "m7", "m8"],
        "grant_ends": [],
        "orders_failing": ["m9"],
        "events_late": ["order-events"],
    }
    [doubt] = found[Condition.IN_DOUBT]
    assert doubt.says.startswith("2 orders of merchant m2 in doubt for 5 minutes or more")


def test_a_merchant_whose_pos_contradicts_an_event_is_found(
    engine: Engine, reports: Reports
) -> None:
    now, what = time.time(), "callback.contradiction"
    lines = [
        ("m1", "o1", what, now),
        ("m1", "o1", what, now),
        ("m1", "o2", what, now),
        ("m2", "o3", "callback.accepted", now),
        ("m3", "o4", what, now - 3600),
    ]
    known = {"operator": "callback of rest", "details": ""}
    with engine.begin() as connection:
        for merchant, order_id, done, at in lines:
            row = {"merchant_id": merchant, "order_id": order_id, "what": done, "at": at}
            connection.execute(insert(audit).values(**row, **known))
    [found] = look(engine, reports.view)[Condition.CONTRADICTED]
    assert (found.subject, found.count) == ("m1", 2)


def test_orders_past_their_deliver_by_without_a_message_are_found(
    engine: Engine, reports: Reports
) -> None:
    """As after a resolve that was killed between its commit and its message, or a lost broker."""
    now = time.time()
    reports.worker("w1").report(**WELL)
    for order_id, state, late in (("o1", "new", 600), ("o2", "pending", 600), ("o3", "new", 60)):
        put_order(engine, order_id, "m1", state, updated_at=now - 600, deliver_by=now - late)
    put_order(engine, "o4", "m1", "expired", updated_at=now - 600, deliver_by=now - 600)
    [overdue] = look(engine, reports.view)[Condition.OVERDUE]
    assert (overdue.subject, overdue.count) == ("orders", 2)
    assert overdue.says.startswith("2 orders past deliver_by")


def test_a_merchant_whose_credentials_are_refused_has_no_second_alert_for_its_breaker(
    engine: Engine, reports: Reports
) -> None:
    put_order(engine, "o1", "m1", "new", updated_at=time.time(), reason_code="credential_refused")
    reports.worker("w1").report(SILENT._replace(error="credential_refused"), **WELL)
    found = look(engine, reports.view)
    assert [each.subject for each in found[Condition.CREDENTIAL_REFUSED]] == ["m1"]
    assert found[Condition.BREAKER_OPEN] == []


def test_a_breaker_that_opens_and_closes_again_and_again_hides_no_failing_orders(
    engine: Engine, reports: Reports
) -> None:
    record(engine, "m1", *["failed"] * 3)
    for state, lasts, failing, silent in (
        ("open", 5.0, ["m1"], []),
        ("closed", 0.0, ["m1"], []),
        ("half_open", 290.0, ["m1"], []),
        ("open", 400.0, [], ["m1"]),
    ):
        reports.worker("w1").report(SILENT._replace(breaker=state, breaker_for=lasts), **WELL)
        found = look(engine, reports.view)
        assert [each.subject for each in found[Condition.ORDERS_FAILING]] == failing
        assert [each.subject for each in found[Condition.BREAKER_OPEN]] == silent


@pytest.mark.parametrize("lasts", [60, 180, 290, 400])
def test_a_merchant_that_fails_all_its_orders_is_alerted_of_however_long_its_breaker_is_open(
    engine: Engine, reports: Reports, lasts: int
) -> None:
    """Its POS answers now and then, and its breaker closes for twenty seconds."""
    record(engine, "m1", *["failed"] * 30)
    alerts: list[Alert] = []
    both = (Condition.ORDERS_FAILING, Condition.BREAKER_OPEN)
    for second in range(0, 1200, 30):
        not_closed = max(0, second % (lasts + 20) - 20)
        state = "open" if not_closed else "closed"
        trouble = SILENT._replace(breaker=state, breaker_for=float(not_closed))
        reports.worker("w1").report(trouble, **WELL)
        found = look(engine, reports.view)
        alerts = decide(alerts, {each: found[each] for each in both}, float(second))
        if second >= 300:
            assert AlertState.FIRING in [each.state for each in alerts], second


def test_what_is_not_known_is_not_well(engine: Engine, reports: Reports) -> None:
    """A process that publishes events alone delivers no order; no green worker sees a breaker."""
    reports.worker("e").report(kind=EVENTS, events_age=0.0, queues={"orders": 0})
    found = look(engine, reports.view)
    assert found[Condition.NO_WORKER]
    assert Condition.BREAKER_OPEN not in found
    assert Condition.DEAD_LETTERS not in found
    reports.worker("e").report(kind=SYNCHRONOUS)
    found = look(engine, reports.view)
    assert not found[Condition.NO_WORKER]
    assert Condition.BREAKER_OPEN not in found
    assert Condition.DEAD_LETTERS not in found
    for unknown in (Condition.QUEUES_UNKNOWN, Condition.EVENTS_LATE):
        assert found[unknown], unknown
    reports.worker("e").report(**WELL)
    found = look(engine, reports.view)
    assert not any(found.values())
    assert {Condition.BREAKER_OPEN, Condition.DEAD_LETTERS} < found.keys()


@pytest.mark.parametrize(
    ("consumers", "is_found"),
    [
        ([0], True),
        ([0, 0, 0], True),  # a fleet whose login lost its right, or a queue without a quorum
        ([1], False),  # one that takes nothing: its merchants are paused, or all is parked
        ([3, 3, 3], False),
        ([1, 1, 1], False),  # one of three reads
        ([None], False),  # a worker of an earlier release, or one that starts
        ([None, 0, None], True),  # a rolling upgrade: those that know count
        ([0, 2], False),  # back since the first one asked
    ],
)
def test_orders_that_no_worker_takes_are_found(
    engine: Engine, reports: Reports, consumers: list[int | None], is_found: bool
) -> None:
    queues = {"orders": 50_000, "orders.dead": 0}
    for number, each in enumerate(consumers):
        reports.worker(f"w{number}").report(events_age=0.0, queues=queues, consumers=each)
        reports.pass_time(1.0)
    found = look(engine, reports.view)
    assert [each.subject for each in found[Condition.NO_WORKER]] == ["workers"] * is_found
    assert all("No worker takes orders" in each.says for each in found[Condition.NO_WORKER])


@pytest.mark.parametrize("lasts", [20.0, 200.0])
def test_workers_that_reconnect_or_drain_for_seconds_are_no_alert(
    engine: Engine, reports: Reports, lasts: float
) -> None:
    reports.worker("w1").report(**WELL, consumers=0)
    found = {Condition.NO_WORKER: look(engine, reports.view)[Condition.NO_WORKER]}
    alerts = decide(decide([], found, 1000.0), found, 1000.0 + lasts)
    assert [each.state for each in alerts] == ["firing" if lasts > 120 else "pending"]


@pytest.mark.parametrize("unseen", ["orders", "orders.dead"])
def test_a_queue_that_no_worker_may_see_is_found(
    engine: Engine, reports: Reports, unseen: str
) -> None:
    seen = {name: 0 for name in ("orders", "orders.dead", "order-events") if name != unseen}
    reports.worker("w1").report(events_age=0.0, queues=seen)
    found = look(engine, reports.view)
    assert [each.subject for each in found[Condition.QUEUES_UNKNOWN]] == [unseen]


def test_a_receiver_gets_what_needs_a_person_signed_and_once(
    engine: Engine, reports: Reports
) -> None:
    receiver = Scripted(OK)
    reports.worker("w1").report(SILENT, **WELL)
    watch = watch_of(engine, receiver.url)
    for _ in range(3):
        watch.round()
    reports.worker("w1").report(**WELL)
    watch.round()
    with engine.begin() as connection:  # as if it were clear for that long
        connection.execute(update(alerts).values(clear_since=alerts.c.clear_since - 400))
    watch.round()
    watch.round()
    receiver.close()
    first, last = [sent(each) for each in receiver.asked]
    assert (first["type"], last["type"]) == ("alert.firing", "alert.resolved")
    assert first["data"]["incident"] == last["data"]["incident"]
    assert first["data"] | {"alert": "breaker_open", "subject": "m1", "count": 7} == first["data"]
    assert first["data"]["link"] == "https://ops.example.com/merchants"
    assert AlertStore(engine).all() == []


@pytest.mark.parametrize(
    "reply",
    [
        nothing,
        silence,
        (500, {}, b"sorry"),
        (302, {"Location": "http://169.254.169.254/latest"}, b""),
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", b"x" * 65536),
    ],
    ids=["closes", "silent", "fails", "redirects", "huge"],
)
def test_a_receiver_in_trouble_gets_the_same_message_again(
    reply: Any, database_url: str, monkeypatch: pytest.MonkeyPatch, engine_of: Any
) -> None:
    monkeypatch.setattr(sending, "TIMEOUT", 1.0)
    engine = engine_of(database_url)
    Reports(engine).worker("w1").report(SILENT, SILENT._replace(merchant_id="m2"))
    receiver = Scripted(reply, OK)
    watch = watch_of(engine, f"{receiver.url}/hook/very-secret?key=hunter2")
    with capture_logs() as logs:
        watch.round()
        assert len(receiver.asked) == 1  # the other one waits, too
        monkeypatch.setattr(sending, "TIMEOUT", SOON)
        watch.round()  # its pause is not over, and the other one is sent
        make_due(engine)
        watch.round()
    receiver.close()
    first, second, third = receiver.asked
    assert first.headers["webhook-id"] == third.headers["webhook-id"]
    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    assert sent(third)["type"] == "alert.firing"
    assert [each["event"] for each in logs] == ["alerts.not_sent", "alerts.sent", "alerts.sent"]
    for secret in ("hunter2", "very-secret", SECRET, SECRET.removeprefix("whsec_")):
        assert secret not in repr(logs)


def test_two_servers_send_one_message_and_the_other_takes_over(
    engine: Engine, reports: Reports
) -> None:
    receiver = Scripted(OK)
    reports.worker("w1").report(*(SILENT._replace(merchant_id=f"m{each}") for each in range(8)))
    watches = [watch_of(engine, receiver.url) for _ in range(3)]
    threads = [threading.Thread(target=each.round) for each in watches]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({each.headers["webhook-id"] for each in receiver.asked}) == 8
    assert len(receiver.asked) == 8
    stores = [AlertStore(engine), AlertStore(engine)]
    # The one that has it is gone; or the database's clock was set back.
    for until in (0.0, time.time() + 86_400):
        expire_claim(engine, until)
        assert [each.claim() for each in stores] == [True, False]
        stores.reverse()
    receiver.close()


def test_a_server_whose_claim_was_taken_begins_nothing(engine: Engine) -> None:
    """It was suspended between its decision and its attempt; the other one has sent."""
    findings = {Condition.BREAKER_OPEN: [Finding("m1", "m1 is in trouble")]}
    late, other = AlertStore(engine), AlertStore(engine)
    assert late.update(lambda alerts, now: decide(alerts, findings, now))
    [alert] = late.due(10)
    expire_claim(engine)
    assert other.begin(alert)
    assert not late.begin(alert)
    expire_claim(engine)  # nor if it has the claim again
    assert not late.begin(alert)
    other.delivered(alert)
    assert not late.begin(alert)


def test_its_thread_sends_and_gives_the_claim_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch, engine_of: Any
) -> None:
    monkeypatch.setattr(watching, "EVERY", 0.01)
    engine, came = engine_of(database_url), threading.Event()
    Reports(engine).worker("w1").report(SILENT, **WELL)

    def confirm(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        came.set()

    receiver = Scripted(confirm)
    watch = watch_of(engine, receiver.url)
    watch.start()
    assert came.wait(SOON)
    watch.stop()
    receiver.close()
    assert AlertStore(engine).claim()
    assert len(receiver.asked) == 1


def test_a_server_without_a_secret_does_not_start() -> None:
    alerts_on = {"alert_url": "http://127.0.0.1:1/", "database_url": "sqlite://", "metrics_port": 0}
    with pytest.raises(InvalidSettings):
        Site(Settings.model_validate(alerts_on))
    site = Site(Settings.model_validate({**alerts_on, "alert_secret": SECRET}))
    site.database.dispose()


def test_the_command_says_what_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Scripted(OK, (404, {}, b"no such hook"))
    given = {"POS_GATEWAY_ALERT_URL": receiver.url, "POS_GATEWAY_ALERT_SECRET": SECRET}
    done = [CliRunner().invoke(root, ["alerts", "test"], env=given) for _ in range(2)]
    receiver.close()
    assert [each.exit_code for each in done] == [0, 1]
    assert "has confirmed the test alert msg_" in done[0].stdout
    assert done[1].stderr.endswith("it answered 404\n")
    assert sent(receiver.asked[0])["type"] == "alert.test"
    unset = CliRunner().invoke(root, ["alerts", "test"])
    assert (unset.exit_code, "POS_GATEWAY_ALERT_URL is not set" in unset.stderr) == (1, True)
    monkeypatch.setattr(sending, "TIMEOUT", 0.5)
    gone = CliRunner().invoke(root, ["alerts", "test"], env=given)
    assert gone.exit_code == 1 and "cannot connect to 127.0.0.1" in gone.stderr


def test_the_command_lists_what_has_begun(database_url: str, engine_of: Any) -> None:
    engine = engine_of(database_url)
    Reports(engine).worker("w1").report(SILENT, **WELL)
    receiver = Scripted(nothing)
    watch_of(engine, receiver.url).round()
    receiver.close()
    given = {"POS_GATEWAY_DATABASE_URL": database_url}
    shown = CliRunner().invoke(root, ["alerts", "list", "--json"], env=given)
    [alert] = [json.loads(line) for line in shown.stdout.splitlines()]
    assert alert | {"alert": "breaker_open", "state": "firing", "sent": False} == alert
    assert "m1\tfiring" in CliRunner().invoke(root, ["alerts", "list"], env=given).stdout


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://169.254.169.254/latest", "which is not public"),
        ("http://8.8.8.8/hook", "plain HTTP"),
        ("http://0.0.0.0/hook", "which is not public"),
    ],
)
def test_a_url_of_the_clouds_metadata_or_without_tls_is_refused(url: str, why: str) -> None:
    problem = AlertSender(url, SECRET, SYSTEM_CLOCK).send(trial_message(SYSTEM_CLOCK.now()))
    assert problem is not None and why in problem


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "is needed with POS_GATEWAY_ALERT_URL"),
        ({"alert_secret": "hunter2!"}, "should be base64"),
        ({"alert_secret": "aHVudGVyMg=="}, "should be 24 to 64 bytes"),
        ({"alert_secret_file": "/nowhere"}, "/nowhere: No such file"),
    ],
)
def test_a_secret_that_is_none_is_said_without_it(given: dict[str, str], why: str) -> None:
    settings = Settings.model_validate({"alert_url": "https://alerts.example.com", **given})
    with pytest.raises(InvalidSettings) as wrong:
        sending.sender_of(settings, SYSTEM_CLOCK)
    assert why in str(wrong.value)
    assert "hunter2" not in str(wrong.value) and "aHVu" not in str(wrong.value)


def test_the_url_is_shown_masked() -> None:
    url = "https://hooks.example.com/services/very-secret"
    for given in (url, url.replace("https", "ftp")):
        lines = explain({"POS_GATEWAY_ALERT_URL": given})
        assert "very-secret" not in repr(lines) and "hooks.example.com" not in repr(lines)


def test_every_condition_is_in_the_documents() -> None:
    page, runbook = ((ROOT / "docs" / each).read_text() for each in ("alerts.md", "runbook.md"))
    for condition, rule in RULES.items():
        assert f"`{condition}`" in page
        assert f"\n### {rule.runbook}\n" in runbook.lower() or rule.runbook in runbook.lower()
    assert json.dumps({"type": "alert.firing"})[1:-1] in page
