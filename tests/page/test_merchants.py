"""Merchants on the page: those in trouble, one of them, and what an operator does about it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from typing import Any, NamedTuple

import pytest
from sqlalchemy import delete, event, insert, select

from pos_gateway.audit.log import AuditFilter, AuditLine, AuditLog
from pos_gateway.audit.note import By, Note, write
from pos_gateway.database.schema import merchants, orders
from pos_gateway.domain.masking import MASK
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports import fleet_view
from pos_gateway.reports.report import Trouble
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.server.page import acting, merchant_check
from pos_gateway.server.page.heat_map import Range, heat_map
from pos_gateway.server.page.links import Pattern, link
from pos_gateway.server.page.views import nav_counts
from pos_gateway.tokens.token import Role
from testkit.hostile_records import order_named
from testkit.hostile_text import HOSTILE, MARK
from testkit.page_story import seed
from testkit.patience import PATIENCE
from tests.page import trial
from tests.page.lab import Browser, Desk, Reply, desk
from tests.reports.lab import Reports

KIM = By("kim", "a test")
KEY = new_key()
SECRET = "Xk9-hunter2"
ACTIONS = ("pause", "resume", "limits", "edit", "check")


@pytest.fixture
def page(database_url: str, with_trial: None) -> Iterator[Desk]:
    """With a key, so that merchants may have secrets."""
    with desk(database_url, secret_key=KEY) as found:
        yield found


@pytest.fixture
def reports(page: Desk) -> Reports:
    return Reports(page.site.database)


@pytest.fixture
def admin(page: Desk) -> MerchantAdmin:
    return MerchantAdmin(page.site.database, Vault(KEY), lambda _: [])


def a_merchant(merchant_id: str = "m", **fields: Any) -> Merchant:
    return Merchant.parse({"id": merchant_id, "base_url": "https://pos.example.com", **fields})


def words(reply: Reply) -> str:
    """The page's text, without its markup and with one blank between words."""
    parser = _Words()
    parser.feed(reply.text)
    return " ".join("".join(parser.parts).split())


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td", "dt", "dd", "p", "label"):
            self.parts.append(" ")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def audited(page: Desk, merchant_id: str = "m") -> list[AuditLine]:
    return AuditLog(page.site.database).last(
        AuditFilter(merchant_id=merchant_id, what="merchants"), 50
    )


def record(page: Desk, merchant_id: str = "m") -> Merchant:
    return MerchantStore(page.site.database, vault=Vault(KEY)).get([merchant_id])[merchant_id]


def submit(browser: Browser, path: str, **fields: str) -> Reply:
    return browser.submit(browser.get(path).form(path), **{"reason": "it hurts", **fields})


class Case(NamedTuple):
    """A row of the table of states in ``reports/words.py``, and what the page says."""

    name: str
    trouble: Trouble | None
    says: str
    exists: bool = True
    paused: bool = False


CASES = [
    Case("no record", Trouble("m", parked=2), "no merchant has this id: 2 orders are parked", exists=False),
    Case("paused", Trouble("m", waiting=3), "paused by kim since", paused=True),
    Case("not loaded", Trouble("m", waiting=1), "no worker has loaded its record: 1 order waits"),
    Case("open", Trouble("m", agreed=4, breaker="open", breaker_for=245, half_opens_in=900, calls=10, timed_out=9),
         "breaker open for 4 min: 9 of the last 10 calls timed out; tried again in"),
    Case("half-open", Trouble("m", agreed=4, breaker="half_open", breaker_for=245), "breaker half-open after 4 min: one call tries it"),
    Case("silent", Trouble("m", agreed=4, silent=True), "silent: a call hangs or timed out"),
    Case("slow", Trouble("m", agreed=4, latest=4.1, usual=0.3), "slow: replies take 4.1 s, usually 0.3 s"),
    Case("overloaded", Trouble("m", agreed=4, calls=5, overloaded=2), "overloaded: 2 of the last 5 calls were refused as too many"),
    Case("at its limit", Trouble("m", agreed=4, limit=4, in_flight=4, waiting=212), "at its limit of 4: 212 orders wait"),
    Case("times out", Trouble("m", agreed=4, limit=4, in_flight=4, waiting=212, calls=20, timed_out=5),
         "at its limit of 4: 212 orders wait; 5 of the last 20 calls timed out"),
    Case("failing", Trouble("m", agreed=4, calls=8, failed=8), "all of the last 8 calls failed"),
    Case("held up", Trouble("m", agreed=4, limit=4, parked=30), "30 orders are parked"),
    Case("refused", Trouble("m", agreed=4, breaker="open", error="credential_refused", waiting=3), "refuses its credentials"),
    Case("no trouble", None, "in no trouble that a worker sees: 1 worker reports"),
]  # fmt: skip


#: What to do now, as the merchant's page says it.
REMEDIES = {
    **dict.fromkeys(("open", "half-open", "silent"), "pause the provider."),
    **dict.fromkeys(("failing", "held up"), "look at its last orders"),
    "no record": "Add it, and then replay its dead letters.",
    "paused": "Its reason says until when: resume it then.",
    "refused": "Renew its credentials: edit its record",
    "not loaded": "the check says whether its record can be used",
    **dict.fromkeys(("slow", "times out"), "raise its time limit"),
    "overloaded": "lower its concurrency limit",
    "at its limit": "raise its concurrency limit",
    "no trouble": "",
}


@pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])
def test_each_state_is_in_words(
    page: Desk, reports: Reports, admin: MerchantAdmin, case: Case
) -> None:
    if case.exists:
        admin.put([a_merchant()], KIM)
    if case.paused:
        admin.pause(["m"], KIM, paused=True)
    reports.worker("a").report(*([case.trouble] if case.trouble else []))
    browser = page.operator(Role.VIEWER)
    listed, shown = browser.get("/merchants"), browser.get("/merchants/m")
    assert shown.status == (200 if case.exists else 404)
    assert case.says.lower() in words(shown).lower()
    assert REMEDIES[case.name] in words(shown)
    if case.trouble is None:
        assert "No merchant is in trouble: 1 worker reports" in words(listed)
    else:
        assert case.says in words(listed)
        assert 'href="/merchants/m"' in listed.text


def test_the_figures_of_all_workers_stand_beside_the_words(page: Desk, reports: Reports) -> None:
    trouble = Trouble(
        "m", since=300, latest=4.1, usual=0.3, in_flight=2, limit=3, waiting=7, parked=600,
        error="timeout", error_ago=425, agreed=4,
    )  # fmt: skip
    reports.worker("a").report(trouble, Trouble("n", waiting=1, agreed=4), in_trouble=9)
    reports.worker("b").report(trouble)
    text = words(page.operator().get("/merchants"))
    row = text[text.index(" m no merchant") : text.index(" n no merchant")]
    for figure in ("4.1 s / 300 ms", "4 of 6", " 14 ", "1,200", "5 min", "timeout, 7 min"):
        assert figure in row, figure
    assert "There are at least 7 more" in text


def test_without_a_worker_it_is_not_known(page: Desk, admin: MerchantAdmin) -> None:
    admin.put([a_merchant()], KIM)
    browser = page.operator()
    assert "No green worker reports: which merchants are in trouble is not known" in words(
        browser.get("/merchants")
    )
    assert "No green worker reports: how it does is not known" in words(browser.get("/merchants/m"))


def test_merchants_are_found_by_a_part_of_id_or_provider_a_page_at_a_time(
    page: Desk, admin: MerchantAdmin
) -> None:
    many = [a_merchant(f"cafe-{number:03}", provider="acme") for number in range(120)]
    admin.put([*many, a_merchant("bar", paused=True), a_merchant("100%_x")], KIM)
    browser = page.operator(Role.VIEWER)

    def found(path: str) -> list[str]:
        text = browser.get(path).text
        return [
            each.partition('"')[0] for each in text.split('data-label="Merchant"><a href="/merchants/')[1:]
        ]  # fmt: skip

    assert "Find one of 122 merchants" in words(browser.get("/merchants"))
    assert found("/merchants") == []
    assert found("/merchants?find=BAR") == ["bar"]
    assert "paused" in words(browser.get("/merchants?find=bar"))
    assert found("/merchants?find=%25_") == ["100%25_x"]
    seen: list[str] = []
    path: str | None = "/merchants?find=acme"
    while path:
        seen += found(path)
        text = browser.get(path).text
        path = next((each.split('">')[0].replace("&amp;", "&") for each in text.split('href="')[1:]
                     if "Next page" in each.split("</a>")[0]), None)  # fmt: skip
    assert seen == [each.id for each in many]
    assert "No merchant has this" in words(browser.get("/merchants?find=nothing"))
    assert len(found("/merchants?find=")) == 50


def test_providers_say_how_many_of_their_merchants_are_in_trouble(
    page: Desk, reports: Reports, admin: MerchantAdmin
) -> None:
    acme = [a_merchant(f"a{number}", provider="acme") for number in range(30)]
    admin.put([*acme, a_merchant("b", provider="bistro"), a_merchant("alone")], KIM)
    reports.worker("a").report(
        Trouble("a1", waiting=3), Trouble("a2", parked=4), Trouble("b"), Trouble("alone"), Trouble("gone")
    )  # fmt: skip
    reports.worker("b").report(Trouble("a1", waiting=5))
    admin.pause(["a1"], KIM, paused=True)
    text = words(page.operator().get("/merchants"))
    assert (
        "acme: 2 of 30 merchants in trouble; 12 orders of theirs wait or are parked; 1 paused."
        in text
    )
    assert "bistro: 1 of 1 merchant in trouble." in text


def test_a_merchants_page_has_its_hour_orders_record_and_audit(page: Desk) -> None:
    story = seed(page.site.database, merchants=20, orders=400)
    CatalogStore(page.site.database).put({story.slow: {"burger": "V1"}})
    browser = page.operator(Role.VIEWER)
    reply = browser.get(link("/merchants/{}", story.slow))
    text = words(reply)
    assert 'class="c-accepted"' in reply.text and 'class="c-in_doubt"' in reply.text
    assert 'class="h5"' in reply.text and "Reply times as a table" in text
    assert "calls in all: " in text and "≤ 10.0 s" in text
    assert (
        'class="line c-limit"' in reply.text
        and "lowest on a worker: 3 at last, highest 10 at" in text
    )
    assert "In this hour no worker" not in text and 'class="c-open"' not in reply.text
    assert f'href="/orders?merchant={story.slow}&amp;state=accepted"' in reply.text
    doubtful = browser.get(link("/merchants/{}", story.doubtful)).text
    assert 'class="c-open"' in doubtful and 'class="c-half-open"' in doubtful
    assert f'href="/orders?merchant={story.doubtful}&amp;state=in_doubt"' in doubtful
    assert f'href="/merchants/{story.slow}/orders/o-' in reply.text
    assert "not set: 10 s, as for every merchant" in text
    assert "Catalog present" in text
    paused = words(browser.get(link("/merchants/{}", story.paused)))
    assert "no worker reported an open breaker or a lowered limit" in paused
    assert (
        "Paused by operator since" in paused
        and f"({MASK})" in paused
        and "the kitchen is flooded" not in paused
    )
    assert "merchants.pause" in paused
    assert "Catalog none" in paused


def test_a_viewer_does_not_read_what_operators_wrote(
    page: Desk, reports: Reports, admin: MerchantAdmin
) -> None:
    admin.put([a_merchant()], KIM)
    admin.pause(["m"], By("lee", "Berg wants it"), paused=True)
    reports.worker("w").report(Trouble("m", waiting=1))
    row = _order("m", "o2") | {"state": "rejected", "reason_code": "no_cake_for_Berg"}
    with page.site.database.begin() as connection:
        note = Note("orders.resolve", "m", "o1", "asked A. Berg")
        write(connection, [note], by=By("kim", "A. Berg called"), at=1.0)
        connection.execute(insert(orders), row)
    for role, sees in ((Role.VIEWER, False), (Role.OPERATOR, True)):
        browser = page.operator(role, name=str(role))
        text = words(browser.get("/merchants/m"))
        assert ("A. Berg" in text) == sees
        assert "orders.resolve" in text and "paused by lee" in text.lower()
        assert "no_cake_for_Berg" not in text  # a POS's words: for those who reveal the order
        assert ("Berg wants it" in text) == sees
        assert ("Berg wants it" in words(browser.get("/merchants"))) == sees


def test_no_page_costs_a_query_a_merchant(
    page: Desk, reports: Reports, admin: MerchantAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nav_counts, "_FRESH", float("inf"))
    monkeypatch.setattr(fleet_view, "_FRESH", 0.0)  # each look reads the outcomes
    browser = page.operator(Role.OPERATOR)
    browser.get("/merchants")  # the navigation's counts are read for the first and last time
    counts = []
    for number in (1, 50):
        ids = [f"m{each}" for each in range(number)]
        admin.put([a_merchant(each, provider=f"of-{each}") for each in ids], KIM)
        admin.pause(ids, KIM, paused=True)
        reports.worker("a").report(*(Trouble(each, waiting=1) for each in ids))
        with page.site.database.begin() as connection:
            connection.execute(
                insert(orders), [_order("m0", f"o{number}-{n}") for n in range(number)]
            )
        found = []
        for path in (
            "/merchants?find=",
            "/merchants/m0",
            "/merchants/m0/pause",
            "/providers/of-m0/pause",
        ):
            page.site._page_live._last.clear()
            with _queries(page) as statements:
                assert browser.get(path).status == 200
            found.append(len(statements))
        counts.append(found)
    assert counts[0] == counts[1]
    assert max(counts[0]) <= 13  # the orders' recent outcomes, and the merchant's size, among them


def _order(merchant_id: str, order_id: str) -> dict[str, Any]:
    zero = dict.fromkeys(("ticket", "epoch", "attempts", "deaths", "reopened"), 0)
    return {
        "merchant_id": merchant_id, "order_id": order_id, "action": "submit", "state": "accepted",
        "pending": False, "created_at": 1.0, "updated_at": 1.0, **zero,
    }  # fmt: skip


@contextmanager
def _queries(page: Desk) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(page.site.database, "before_cursor_execute", note)
    yield statements
    event.remove(page.site.database, "before_cursor_execute", note)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Browser]]:
    """A desk, and an operator's browser, for all hostile texts."""
    folder = tmp_path_factory.mktemp("hostile")
    with ExitStack() as stack:
        with trial.added():  # the sites of other tests add it themselves
            made = desk(f"sqlite:///{folder}/gateway.db", secret_key=KEY)
            found = stack.enter_context(made)
        yield found, found.operator()


@pytest.mark.parametrize("text", list(HOSTILE.values()), ids=str)
def test_hostile_words_are_data(kept: tuple[Desk, Browser], text: Any) -> None:
    page, browser = kept
    said = text.text.encode("utf-8", "replace").decode().replace("\0", "")[:64] or "x"
    merchant_id = order_named(text.text) or "m"
    with page.site.database.begin() as connection:
        connection.execute(delete(merchants))
    admin = MerchantAdmin(page.site.database, Vault(KEY), lambda _: [])
    admin.put([a_merchant(merchant_id, provider=said)], KIM)
    admin.pause([merchant_id], By("kim", said), paused=True)
    trouble = Trouble(merchant_id, waiting=1, error=said, breaker=said)
    Reports(page.site.database).worker("a").report(trouble)
    page.site._page_live._last.clear()
    paths = [link("/merchants", find=said), link("/merchants/{}", merchant_id)]
    paths += [link(f"/merchants/{{}}/{each}", merchant_id) for each in ACTIONS]
    paths += [link("/providers/{}/pause", said), link("/merchants", find="x", after=said)]
    for path in paths:
        reply = browser.get(path)
        assert reply.status == 200, path
        parser = _Words()
        parser.feed(reply.text)
        for tag, attributes in parser.tags:
            assert tag != MARK and MARK not in dict(attributes), path
            assert not any(name.startswith("on") for name, _ in attributes), path


@pytest.mark.parametrize(
    "path", ["/merchants/nobody", "/merchants/%00", "/merchants/a%00b/pause", "/providers/nothing/pause"]  # words: ok
)  # fmt: skip
def test_what_is_not_there_is_a_page_that_says_so(page: Desk, path: str) -> None:
    assert page.operator().get(path).status == 404


def test_no_id_in_a_path_has_a_nul() -> None:
    """PostgreSQL would take a query with one for a failure of the database."""
    assert Pattern("/merchants/{merchant_id}").match("/merchants/a%00b") is None


def test_a_viewer_sees_no_action_and_does_none(
    page: Desk, reports: Reports, admin: MerchantAdmin
) -> None:
    admin.put([a_merchant(provider="acme")], KIM)
    reports.worker("a").report(Trouble("m", waiting=1))
    operator, viewer = page.operator(), page.operator(Role.VIEWER, "vera")
    before = audited(page)
    for path in ("/merchants", "/merchants?find=", "/merchants/m"):
        assert "/pause" in operator.get(path).text or "find" in path
        text = viewer.get(path).text
        assert not any(f"/{each}" in text for each in ACTIONS), path
    paths = [f"/merchants/m/{each}" for each in ACTIONS]
    for path in [*paths, "/providers/acme/pause", "/providers/acme/resume"]:
        assert viewer.get(path).status == 403
        form = operator.get(path).form(path.rpartition("/")[0]) if "resume" not in path else None
        fields = {} if form is None else form.fields
        csrf = viewer.get("/merchants").form("/logout").fields["csrf"]
        reply = viewer.post(path, {**fields, "csrf": csrf, "reason": "because"})
        assert reply.status == 403
    assert audited(page) == before and not record(page).paused


def test_an_operator_pauses_and_resumes_a_merchant(
    page: Desk, reports: Reports, admin: MerchantAdmin
) -> None:
    admin.put([a_merchant()], KIM)
    reports.worker("a").report(Trouble("m", in_flight=2, waiting=3, parked=4))
    browser = page.operator(name="lee")
    form = browser.get("/merchants/m/pause")
    assert "Now 7 orders wait or are parked" in words(form) and "2 now, are finished" in words(form)
    reply = submit(browser, "/merchants/m/pause", reason="the till is on fire")
    assert reply.status == 303
    assert "m is paused" in words(browser.get(reply.headers["location"]))
    assert record(page).paused
    page.site._page_live._last.clear()
    shown = browser.get("/merchants/m")
    assert "Paused by lee since" in words(shown) and "the till is on fire" in words(shown)
    assert "Resume it" in shown.text and "Pause it" not in shown.text
    # Two operators at once: the second one's form is older than the first one's pause.
    refused = browser.submit(form.form("/merchants/m/pause"), reason="me too")
    assert refused.status == 409
    assert "It is paused already: nothing was changed" in words(refused)
    assert submit(browser, "/merchants/m/resume", reason="it is out").status == 303
    assert not record(page).paused
    assert [(each.operator, each.what, each.reason) for each in audited(page)[1:]] == [
        ("lee", "merchants.pause", "the till is on fire"),
        ("lee", "merchants.resume", "it is out"),
    ]


def test_an_operator_pauses_and_resumes_a_whole_provider(
    page: Desk, reports: Reports, admin: MerchantAdmin
) -> None:
    acme = [a_merchant(each, provider="acme") for each in ("a", "b", "c")]
    admin.put([*acme, a_merchant("other", provider="bistro")], KIM)
    admin.pause(["c"], KIM, paused=True)
    reports.worker("a").report(Trouble("a", waiting=3), Trouble("other", waiting=9))
    with page.site.database.begin() as connection:
        rows = [_order("a", "o1"), _order("a", "o2"), _order("other", "o3")]
        connection.execute(insert(orders), [{**each, "state": "new"} for each in rows])
    browser, path = page.operator(name="lee"), "/providers/acme/{}"
    text = words(browser.get(path.format("pause")))
    assert "It pauses 2 merchants of 3; 1 is paused already." in text
    assert (
        "3 orders of its merchants wait or are parked, and 2 orders in the ledger have not ended"
        in text
    )
    reply = submit(browser, path.format("pause"), reason="outage")
    assert "acme: 2 merchants paused; 1 was paused already." in words(
        browser.get(reply.headers["location"])
    )
    assert [record(page, each).paused for each in ("a", "b", "c", "other")] == [
        True,
        True,
        True,
        False,
    ]
    text = words(browser.get(path.format("resume")))
    assert "It resumes 2 merchants of 3; 1 was paused otherwise, and stays so." in text
    reply = submit(browser, path.format("resume"))
    assert "2 merchants resumed; 1 was not paused with the provider, and stays paused." in words(
        browser.get(reply.headers["location"])
    )
    assert [record(page, each).paused for each in ("a", "b", "c")] == [False, False, True]
    submit(browser, path.format("resume"), all="yes")
    assert not record(page, "c").paused
    assert [(each.operator, each.reason) for each in audited(page, "a")[1:]] == [
        ("lee", "outage"), ("lee", "it hurts"),
    ]  # fmt: skip


def test_an_operator_changes_the_limits(page: Desk, admin: MerchantAdmin) -> None:
    admin.put([a_merchant(request_timeout=5.0)], KIM)
    browser, path = page.operator(name="lee"), "/merchants/m/limits"
    form = browser.get(path).form(path)
    assert (form.fields["max_concurrency"], form.fields["request_timeout"]) == ("", "5")
    reply = submit(browser, path, max_concurrency="8", request_timeout="2.5")
    text = words(browser.get(reply.headers["location"]))
    assert "Changed max_concurrency: (none) -> 8, request_timeout: 5.0 -> 2.5." in text
    assert (record(page).max_concurrency, record(page).request_timeout) == (8, 2.5)
    reply = submit(browser, path, max_concurrency="")
    assert record(page).max_concurrency is None
    reply = submit(browser, path)
    assert "Nothing is different" in words(browser.get(reply.headers["location"]))
    assert [(each.operator, each.what) for each in audited(page)[1:]] == [
        ("lee", "merchants.set")
    ] * 2


@pytest.mark.parametrize(
    ("name", "typed", "says"),
    [
        ("max_concurrency", "0", "Max_concurrency: "),
        ("max_concurrency", "many", "should be a whole number"),
        ("max_concurrency", "1e3", "should be a whole number"),
        ("max_concurrency", "10001", "Max_concurrency: "),
        ("max_concurrency", "9" * 5000, "Max_concurrency: "),
        ("request_timeout", "nan", "Request_timeout: "),
        ("request_timeout", "0", "Request_timeout: "),
        ("request_timeout", "121", "Request_timeout: "),
        ("request_timeout", "soon", "should be a number"),
        ("stamp", "", "open it again"),
        ("stamp", "nan", "was edited meanwhile"),
    ],
)
def test_a_wrong_limit_is_refused_in_a_sentence(
    page: Desk, admin: MerchantAdmin, name: str, typed: str, says: str
) -> None:
    admin.put([a_merchant()], KIM)
    reply = submit(page.operator(), "/merchants/m/limits", **{name: typed})
    assert reply.status == 409
    assert says in words(reply)
    assert f'value="{typed}"' in reply.text  # what was typed is kept
    assert len(audited(page)) == 1


@pytest.mark.parametrize("what", ["limits", "edit"])
def test_of_two_operators_who_edit_at_once_the_second_is_refused(
    page: Desk, admin: MerchantAdmin, what: str
) -> None:
    admin.put([a_merchant(max_concurrency=4, provider="acme")], KIM)
    path = f"/merchants/m/{what}"
    name = {"limits": "max_concurrency", "edit": "provider"}[what]
    one, two = page.operator(name="kim"), page.operator(name="lee")
    first, second = one.get(path).form(path), two.get(path).form(path)
    assert one.submit(first, reason="first", **{name: "7"}).status == 303
    refused = two.submit(second, reason="second", **{name: "9"})
    assert refused.status == 409
    assert "was edited meanwhile; nothing was written" in words(refused)
    # The form that is shown again still shows the old record's other fields.
    assert two.submit(refused.form(path), reason="second", **{name: "9"}).status == 409
    assert str(getattr(record(page), name)) == "7"
    assert "Open the form again" in words(refused)
    assert submit(two, path, **{name: "9"}).status == 303
    assert str(getattr(record(page), name)) == "9"
    assert [each.operator for each in audited(page)] == ["kim", "kim", "lee"]


def test_an_operator_edits_the_other_fields(page: Desk, admin: MerchantAdmin) -> None:
    auth = {"type": "basic", "username": "us", "password": SECRET}
    pos = {"merchant_id": "S1"}
    more = {"adapter": "clover", "pos": pos, "auth": auth, "request_timeout": 30}
    admin.put([a_merchant(provider="two\nlines", **more)], KIM)
    browser, path = page.operator(), "/merchants/m/edit"
    moved = {"base_url": "https://new.example.com/", "auth.password": SECRET}
    assert submit(browser, path, **moved).status == 303
    assert record(page).base_url == "https://new.example.com"
    assert record(page).provider == "two\nlines"  # a form has no line ends
    fields = {
        "pos.merchant_id": "S2",
        "new-name": "order_type",
        "new-value": "T1",
        "auth.username": "we",
    }
    assert submit(browser, path, **fields).status == 303
    assert record(page).pos == {"merchant_id": "S2", "order_type": "T1"}
    assert record(page).auth.reveal() == {"type": "basic", "username": "we", "password": SECRET}
    fields = {"auth.password": "new-hunter3", "auth.webhook_signature_key": "hook-hunter4"}
    assert submit(browser, path, **fields).status == 303
    assert record(page).auth.reveal() == {
        "type": "basic", "username": "we", "password": "new-hunter3", "webhook_signature_key": "hook-hunter4",
    }  # fmt: skip
    # What the form does not have is not written.
    assert submit(browser, path, paused="true", id="n", **{"auth.type": "none"}).status == 303
    assert not record(page).paused and record(page).auth.type == "basic"  # type: ignore[attr-defined]
    for name, typed, says in (
        ("base_url", "https://u:p@x.example.com", "base_url: must not carry a user"),
        ("base_url", "", "base_url: "),
        ("adapter", "none", "adapter: is not one of the adapters here"),
        ("new-name", "Till Id", "the name of another id in pos"),
        ("new-value", "T2", "the name of another id in pos"),
        ("auth.password", "two\nlines", "auth.basic.password"),
    ):
        reply = submit(browser, path, **{"auth.password": SECRET, name: typed})
        assert reply.status == 409, name
        assert says.lower() in words(reply).lower(), name


def test_another_host_gets_no_secret_that_was_not_typed(page: Desk, admin: MerchantAdmin) -> None:
    auth = {"type": "oauth2", "token_url": "https://id.example.com/t", "client_id": "us"}
    secrets = {"client_secret": SECRET, "webhook_signature_key": SECRET}
    admin.put([a_merchant(auth={**auth, **secrets})], KIM)
    browser, path, before = page.operator(), "/merchants/m/edit", record(page)
    host = before.base_url
    for name, typed in (
        ("base_url", "https://thief.example.com"),
        ("base_url", host.replace("https:", "http:")),
        ("base_url", f"{host}:8443"),
        ("auth.token_url", "https://id.example.com.thief.example.com/t"),
    ):
        reply = submit(browser, path, **{name: typed})
        assert reply.status == 409, typed
        assert f"ith this {name} another host would get auth.client_secret" in words(reply)
        assert record(page) == before
    assert submit(browser, path, base_url=f"{host}/v2").status == 303
    moved = {"base_url": "https://new.example.com", "auth.client_secret": "typed"}
    assert submit(browser, path, **moved).status == 303
    assert record(page).auth.reveal()["client_secret"] == "typed"


def test_a_secret_is_added_where_there_was_none(page: Desk, admin: MerchantAdmin) -> None:
    admin.put([a_merchant()], KIM)
    fields = {"auth.webhook_signature_key": SECRET}
    assert submit(page.operator(), "/merchants/m/edit", **fields).status == 303
    assert record(page).auth.webhook_signature_keys == (SECRET,)


AUTHS: list[dict[str, Any]] = [
    {"type": "bearer", "token": SECRET},
    {"type": "api_key", "key": SECRET},
    {"type": "basic", "username": "us", "password": SECRET},
    {"type": "hmac", "secret": SECRET},
    {"type": "none", "webhook_signature_key": SECRET},
    {"type": "oauth2", "token_url": "https://x", "client_id": "us", "client_secret": SECRET},
    {"type": "toast", "token_url": "https://x", "client_id": "us", "client_secret": SECRET},
]


@pytest.mark.parametrize("auth", AUTHS, ids=[each["type"] for each in AUTHS])
def test_no_reply_has_a_secret(page: Desk, admin: MerchantAdmin, auth: dict[str, Any]) -> None:
    admin.put([a_merchant(auth=auth)], KIM)
    with page.site.database.connect() as connection:
        sealed = connection.scalar(select(merchants.c.auth))["sealed"]
    [name] = [f"auth.{name}" for name, each in auth.items() if each == SECRET]
    browser, path = page.operator(), "/merchants/m/edit"
    replies = [browser.get("/merchants/m"), browser.get(path), browser.get("/merchants?find=m")]
    form = browser.get(path)
    assert f'name="{name}" type="password"' in form.text
    assert f"{name} set; empty: unchanged" in words(form)
    replies.append(submit(browser, path, base_url="no", **{name: "typed-hunter3"}))  # refused
    replies.append(submit(browser, path, **{name: "not\none-hunter3"}))
    replies.append(submit(browser, path, **{name: "typed-hunter3"}))
    assert [each.status for each in replies[-3:]] == [409, 409, 303]
    replies += [browser.get(replies[-1].headers["location"]), browser.get(path)]
    assert "typed-hunter3" in str(record(page).auth.reveal())
    for reply in replies:
        assert "hunter" not in reply.text + str(reply.headers)
        assert sealed not in reply.text
    assert name.removeprefix("auth.") in words(replies[0])
    assert "hunter" not in str(page.server.audited())


def test_secrets_that_cannot_be_opened_stay_as_they_are(
    database_url: str, with_trial: None
) -> None:
    with desk(database_url, secret_key=new_key()) as page:
        admin = MerchantAdmin(page.site.database, Vault(KEY), lambda _: [])
        admin.put([a_merchant(auth={"type": "bearer", "token": SECRET})], KIM)
        browser, path = page.operator(), "/merchants/m/edit"
        assert "cannot be opened" in words(browser.get(path))
        assert "its secrets are sealed with the key" in words(browser.get("/merchants/m"))
        reply = submit(browser, path, base_url="https://thief.example.com")
        assert reply.status == 409 and "cannot open" in words(reply)
        assert submit(browser, path, provider="acme").status == 303
        found = record(page)
        assert found.provider == "acme" and found.auth.reveal()["token"] == SECRET


def test_a_secret_without_a_key_is_refused_in_a_sentence(
    database_url: str, with_trial: None
) -> None:
    with desk(database_url) as page:
        MerchantAdmin(page.site.database, Vault(), lambda _: []).put([a_merchant()], KIM)
        fields = {"auth.webhook_signature_key": SECRET}
        reply = submit(page.operator(), "/merchants/m/edit", **fields)
    assert reply.status == 409
    assert "Nothing was written: " in words(reply) and "POS_GATEWAY_SECRET_KEY" in words(reply)


def test_a_check_says_what_the_command_says(
    page: Desk, admin: MerchantAdmin, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command, in its own process; the merchant's port is closed."""
    monkeypatch.setenv("POS_GATEWAY_DATABASE_URL", database_url)
    monkeypatch.setenv("POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES", "true")
    monkeypatch.setattr(merchant_check, "TIMEOUT", PATIENCE)
    monkeypatch.setattr(acting, "TIMEOUT", PATIENCE)
    admin.put([a_merchant("-m", base_url="http://127.0.0.1:1")], KIM)
    browser = page.operator(name="lee")
    reply = submit(browser, "/merchants/-m/check", reason="is it up")
    assert reply.status == 303, words(reply)
    shown = browser.get(reply.headers["location"])
    assert 'class="notice warn" role="status"' in shown.text
    text = words(shown)
    assert "Checked, and its orders would not be sent: base_url http://127.0.0.1:1" in text
    assert "Remedy: " in text
    [line] = [each for each in audited(page, "-m") if each.what == "merchants.check"]
    assert (line.operator, line.reason) == ("lee", "is it up")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import time; time.sleep(60)", "The check did not end within 0.5 s, and was stopped"),
        ("print('nonsense')", "The check itself failed (exit code 0)"),
        ("print('[]')", "The check itself failed"),
        ("raise SystemExit(3)", "The check itself failed (exit code 3)"),
    ],
)
def test_a_check_that_has_no_result_says_so(
    page: Desk, admin: MerchantAdmin, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    monkeypatch.setattr(merchant_check, "_CHECK", ("-c", code))
    monkeypatch.setattr(merchant_check, "TIMEOUT", 0.5 if "sleep" in code else PATIENCE)
    admin.put([a_merchant()], KIM)
    reply = submit(page.operator(), "/merchants/m/check")
    assert reply.status == 409
    assert says in words(reply)


def test_checks_leave_threads_for_other_actions() -> None:
    check = merchant_check.MerchantCheck()
    assert merchant_check._AT_ONCE < acting.THREADS
    for _ in range(merchant_check._AT_ONCE):
        check._places.acquire()
    with pytest.raises(Exception, match="other checks run"):
        check("m")


def test_a_heat_map_has_a_shade_for_every_count_and_its_words() -> None:
    html = str(
        heat_map("Times", "calls", [0.0, 60.0], [Range("low", [100, 0]), Range("<high>", [1, 25])])
    )
    assert '<rect class="h5" x="0" y="1" width="1" height="1"/>' in html
    assert '<rect class="h1" x="0" y="0" width="1" height="1"/>' in html
    assert '<rect class="h3" x="1" y="0" width="1" height="1"/>' in html
    assert html.count('<rect class="h') == 3 + 2  # two of them for what a pointer is over
    assert "00:00 to 00:01 UTC, calls in all: low 100, &lt;high&gt; 26" in html
    assert "no calls were counted" in str(heat_map("Times", "calls", [], []))


# -- a merchant that is not known


def test_a_merchant_that_orders_name_is_added_once(page: Desk) -> None:
    browser = page.operator()
    assert "/merchants/m/add" in browser.get("/merchants/m").text
    good = {"base_url": "https://pos.example.com", "auth": {"type": "bearer", "token": SECRET}}
    refused = {
        "[]": "is no JSON object",
        "{": "is no JSON",
        json.dumps(good | {"id": "other"}): "of another merchant than m",
        json.dumps(good | {"base_url": "ftp://x"}): "base_url",
        json.dumps(good | {"adapter": "none"}): "is not one of the adapters",
    }
    for text, says in refused.items():
        reply = submit(browser, "/merchants/m/add", record=text)
        assert (reply.status, says in words(reply)) == (409, True), text
        assert SECRET not in reply.text
    whole = json.dumps(good)
    form = browser.get("/merchants/m/add").form("/merchants/m/add")
    assert submit(browser, "/merchants/m/add", record=whole).status == 303
    assert record(page).auth.type == "bearer"
    reply = browser.submit(form, record=whole.replace("pos.", "other."), reason="again")
    assert "it is there already" in words(reply).lower()
    assert record(page).base_url == "https://pos.example.com"
    assert [each.what for each in audited(page)] == ["merchants.import"]
    viewer = page.operator(Role.VIEWER, "vic")
    assert "/add" not in viewer.get("/merchants/unknown").text
    assert viewer.get("/merchants/unknown/add").status == 403
