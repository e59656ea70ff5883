"""Pages as a browser gets them: headers, errors, routes, static files, and the view Now."""

import tomllib
from typing import Any

import pytest
from sqlalchemy import event, insert
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from pos_gateway.database.schema import orders
from pos_gateway.server.page.links import Pattern, link
from pos_gateway.server.page.static import FOLDER, StaticFiles
from pos_gateway.tokens.token import Role
from tests.page.lab import Desk
from tests.planting import ROOT
from tests.reports.lab import LASTS, Reports
from tests.reports.test_recent_outcomes import record

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


@pytest.mark.parametrize(
    "path", ["/", "/trial", "/trial/fails", "/nothing", "/login?x", "/trial/m1/pause"]
)
def test_every_page_forbids_what_it_does_not_need(page: Desk, path: str) -> None:
    reply = page.operator().get(path)
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "same-origin"
    assert reply.headers["cache-control"] == "no-store"


def test_no_page_has_a_script_or_style_of_its_own(page: Desk) -> None:
    browser = page.operator()
    for path in ("/", "/trial", "/trial/live", "/trial/m1/pause", "/nothing"):
        text = browser.get(path).text.lower()
        assert "style=" not in text
        assert "<style" not in text
        assert " on" + "click" not in text
        for script in text.split("<script")[1:]:
            assert script.startswith(' src="/page/static/')


def test_errors_are_pages_for_browsers_and_problems_for_programs(page: Desk) -> None:
    browser = page.operator()
    with capture_logs() as logs:
        for path, status, says in (
            ("/nothing", 404, "There is no page at /nothing"),
            ("/trial/of/nobody", 404, "no merchant has the id"),  # words: ok
            ("/trial/fails", 500, "this server&#39;s log says why"),
        ):
            reply = browser.get(path)
            assert (reply.status, reply.headers["content-type"]) == (
                status,
                "text/html; charset=utf-8",
            )
            assert says.lower() in reply.text.lower()
            assert "a secret of the inside" not in reply.text
            assert 'href="/trial"' in reply.text  # the navigation
            reply = browser.get(path, accept="*/*")
            assert reply.headers["content-type"] == "application/problem+json"
    assert "http.failed" in [each["event"] for each in logs]


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/events", "/openapi.json"])
def test_the_apis_paths_keep_their_problems(page: Desk, path: str) -> None:
    assert page.operator().get(path).headers["content-type"] == "application/problem+json"


def test_a_page_takes_get_and_head_and_an_action_post(page: Desk) -> None:
    browser = page.operator()
    reply = browser.post("/trial", {})
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    head = browser._send("HEAD", "/trial", b"", {})
    assert (head.status, head.text) == (200, "")


def test_metrics_have_routes_and_no_ids(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from pos_gateway.server import asgi

    seen: list[str] = []
    count = asgi.metrics.http_requests
    monkeypatch.setattr(asgi.metrics, "http_requests", lambda *v: (seen.append(v[0]), count(*v))[1])
    browser = page.operator()
    seen.clear()
    for path in ("/trial/of/m1", "/trial/m1/pause", "/page/static/x.css", "/else", "/login", "/"):
        browser.get(path)
    assert seen == [
        "/trial/of/{merchant_id}", "/trial/{merchant_id}/pause", "/page/static/{file}", "(none)",
        "/login", "/",
    ]  # fmt: skip


def test_static_files_are_kept_by_browsers_and_need_no_session(page: Desk) -> None:
    browser = page.browser()
    text = browser.get("/login").text
    [sheet] = [
        each.split('"')[0] for each in text.split('href="')[1:] if ".css" in each.split('"')[0]
    ]
    reply = browser.get(sheet)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert reply.text == (FOLDER / "page.css").read_text()
    for path in ("/page/static/page.css", "/page/static/../app.py", "/page/static/%2e%2e/app.py"):
        assert browser.get(path).status == 404


def test_all_static_files_are_small() -> None:
    assert StaticFiles().size < 150_000


def test_the_wheel_has_every_file_of_the_page() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folder = FOLDER.parent
    packed = {
        path
        for each in patterns["package-data"]["pos_gateway.server.page"]
        for path in folder.glob(each)
    }
    there = {each for name in ("static", "templates") for each in (folder / name).rglob("*.*")}
    assert there == packed


def test_the_navigation_names_where_one_is(page: Desk) -> None:
    browser = page.operator()
    assert '<a href="/trial" aria-current="page">Trial</a>' in browser.get("/trial/of/m1").text
    assert '<a href="/" aria-current="page">Now</a>' in browser.get("/").text
    assert '<a href="/trial">Trial</a>' in browser.get("/").text


def test_a_link_and_its_pattern_are_inverse() -> None:
    pattern = Pattern("/merchants/{merchant_id}/orders/{order_id}")
    for each in ("m1", "..", ".", "=", "=..", "a/b", "%2F", "a b", "ü", "?#&", "~", "", "..."):
        path = link("/merchants/{}/orders/{}", each, each)
        assert pattern.match(path) == {"merchant_id": each, "order_id": each}
        assert "/../" not in path
    assert link("/orders", after="a&b") == "/orders?after=a%26b"
    assert pattern.match("/merchants/a/orders/b/c") is None


@pytest.fixture
def reports(page: Desk) -> Reports:
    return Reports(page.site.database)


def test_now_has_the_figures_of_all_workers(page: Desk, reports: Reports) -> None:
    one, two = reports.worker("one"), reports.worker("two")
    for worker in (one, two):
        worker.report()
        worker.ends(600)
        worker.ends(2, "failed")
        worker.waits[2] = 600
        worker.report(
            slots={"light": 7, "free": 193},
            waiting={"merchant": 1300},
            parked=2100,
            queues={"orders": 40, "orders.canary": 2, "orders.dead": 3},
            events_age=0.25,
        )
    text = " ".join(page.operator(Role.VIEWER).get("/").text.split())
    for name, value in (
        ("Orders in", "1,204"), ("Orders out", "1,204"), ("Waiting", "2,600"), ("Parked", "4,200"),
        ("Queued", "42"), ("Dead-lettered", "3"), ("Event lag", "250 ms"), ("Workers", "2"),
        ("Slots light", "14"), ("Slots free", "386"), ("In doubt", "0"),
    ):  # fmt: skip
        assert f"<dt>{name}</dt><dd><b>{value}</b>" in text, name
    assert "2 green" in text
    assert "0 % of the merchants" in text
    assert "4 failed or expired" in text


def test_now_without_a_worker_says_so_with_the_remedy(page: Desk, reports: Reports) -> None:
    text = page.operator().get("/").text
    assert "No worker reports" in text
    assert "celery -A pos_gateway.gcelery worker" in text
    reports.worker("one").report()
    reports.pass_time(LASTS)
    page.site._page_live._last.clear()  # else it is shared for a second
    text = page.operator(name="kay").get("/").text
    assert "1 worker stopped reporting without a goodbye" in text


def test_now_says_that_a_worker_has_no_cpu_left_with_the_remedy(
    page: Desk, reports: Reports
) -> None:
    reports.worker("one").report(lacks_cpu=True, cores=0.5)
    reports.worker("two").report()
    text = page.operator().get("/").text
    assert "1 of 2 workers has no CPU left (of 0.5 cores)" in text
    assert "pos-gateway plan" in text


def test_now_is_green_only_if_all_is_known(page: Desk, reports: Reports) -> None:
    """Of queues that no worker knows, and merchants that no green one watches, nothing is well."""
    well, unknown = "none is dead-lettered", "dead-lettered is not known"
    queues = {"orders": 0, "orders.dead": 0}
    known: dict[str, Any] = {"queues": queues, "events_age": 0.1}
    browser = page.operator()
    for fields, is_well, says in (
        ({}, False, unknown),
        ({**known, "queues": {}}, False, unknown),
        ({**known, "queues": {"orders": 0}}, False, unknown),
        ({**known, "queues": {"orders.dead": 0}}, False, unknown),
        ({**known, "consumers": 0}, False, "No worker takes orders, though workers report"),
        ({**known, "events_age": None}, False, "No process says that it publishes events"),
        ({**known, "kind": "synchronous"}, False, "Synchronous workers alone report"),
        ({**known, "kind": "events"}, False, "No worker reports"),
        (known, True, well),
    ):
        reports.worker("one").report(**fields)
        page.site._page_live._last.clear()  # else it is shared for a second
        text = browser.get("/").text
        assert (well in text) is is_well, fields
        assert says in text, fields
        assert ("notice good" in text) is is_well, fields
    dead = text.partition("Dead-lettered")[2].partition("</div>")[0]
    assert "<b>0</b>" in dead


def test_the_navigation_says_that_dead_letters_are_not_known(page: Desk, reports: Reports) -> None:
    reports.worker("one").report()
    text = page.operator().get("/").text
    assert '<span class="count">?<span class="of"> dead-lettered: not known</span></span>' in text


def test_now_names_merchants_whose_orders_fail(page: Desk, reports: Reports) -> None:
    reports.worker("one").report(queues={"orders.dead": 0}, events_age=0.1)
    record(page.site.database, "pizza", *["failed"] * 56, code="http_401")
    browser = page.operator()
    text = browser.get("/").text
    assert (
        "Most orders of 1 merchant fail. pizza: 56 of 56 orders in 10 min failed (http_401)."
        in text
    )
    assert "notice good" not in text
    text = browser.get("/merchants").text
    assert "56 of 56 orders in 10 min failed (http_401)" in text
    assert "No merchant is in trouble" not in text
    text = browser.get("/merchants/pizza").text
    assert "No merchant has this id; 56 of 56 orders in 10 min failed (http_401)" in text


def test_now_names_orders_in_doubt(page: Desk, reports: Reports) -> None:
    reports.worker("one").report()
    row = {"merchant_id": "m1", "action": "submit", "state": "in_doubt", "ticket": 0, "epoch": 0}
    row |= {
        "attempts": 1,
        "deaths": 0,
        "pending": False,
        "reopened": 0,
        "created_at": 0.0,
        "updated_at": 0.0,
    }
    with page.site.database.begin() as connection:
        connection.execute(insert(orders), [{**row, "order_id": f"o{n}"} for n in range(2)])
    text = page.operator().get("/").text
    assert "2 orders in doubt: the POS may have them" in text
    assert '<a href="/orders?state=in_doubt">' in text
    assert '<a href="/in-doubt">' in text


def test_now_while_the_database_is_away_says_so_with_the_remedy(page: Desk) -> None:
    browser = page.operator()

    def fail(*_: Any) -> None:
        raise OperationalError("select", {}, Exception("away"))

    event.listen(page.site.database, "before_cursor_execute", fail)
    reply = browser.get("/")
    event.remove(page.site.database, "before_cursor_execute", fail)
    assert reply.status == 200
    assert "The database does not answer" in reply.text
    assert "pos-gateway doctor" in reply.text
