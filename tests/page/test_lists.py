"""Dead letters, orders in doubt, and runs on many of them, over HTTP, with a real broker."""

import html
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import update

from pos_gateway.administration.bulk import letters, store
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.run import BulkAction, Subject
from pos_gateway.broker import topology
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.database.schema import bulk_runs
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.states import State
from pos_gateway.routing import splits
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.server.page.letter_count import CountedLetters, LetterCount
from pos_gateway.tokens.token import Role
from testkit.hostile_text import MARKUP
from testkit.patience import PATIENCE
from tests.bulk.lab import an_order, audited, dead_letter, ids, publish
from tests.cli.books import Books
from tests.page.lab import Browser, Desk, Reply, desk
from tests.server.lab import order

WHY = "the merchant is back"
_MARKUP = [str(each.text) for each in list(MARKUP.values())[:3]]


@pytest.fixture
def broker(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A broker that has no split for the canary, and is not waited for."""
    monkeypatch.setattr(splits, "THERE", 0.0)
    monkeypatch.setattr(letters, "PAUSE", 0.05)
    return broker_url


@pytest.fixture
def site(broker: str, database_url: str, with_trial: None) -> Iterator[Desk]:
    with desk(database_url, broker_url=broker) as found:
        yield found
        found.site.bulk.stop()


def words(reply: Reply) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", reply.text)).split())


def until(browser: Browser, path: str, is_there: Callable[[str], object]) -> str:
    """The page's text, once it says so."""
    end = time.monotonic() + PATIENCE
    while True:
        text = words(browser.get(path))
        if is_there(text):
            return text
        assert time.monotonic() < end, text
        time.sleep(0.05)


def fill(broker: str, count: int, code: str = "token") -> list[str]:
    names = [f"{code}-{n}" for n in range(count)]
    publish(broker, (dead_letter(an_order(each), code=code) for each in names))
    return names


def act(browser: Browser, path: str, **fields: str) -> Reply:
    form = browser.get(path).form(path)
    return browser.submit(form, reason=WHY, **fields)


def preview(browser: Browser, path: str, **fields: str) -> str:
    """The path of a run that is previewed."""
    reply = act(browser, path, **fields)
    assert reply.status == 303, words(reply)
    run = reply.headers["location"].partition("?")[0]
    until(browser, run, lambda text: "is being previewed" not in text)
    return run


def hurry(desk: Desk) -> None:
    """Have runs that are resumed go on as fast as they can."""
    options = json.dumps(BulkOptions(rate=1000.0).record)
    with desk.site.database.begin() as connection:
        connection.execute(update(bulk_runs).values(options=options))


def test_five_hundred_letters_are_previewed_and_each_replayed_once(site: Desk, broker: str) -> None:
    names = fill(broker, 500)
    fill(broker, 3, "poison")
    kim = site.operator()
    listed = until(kim, "/dead-letters", lambda text: "503 letters" in text)
    assert "credentials or certificates are not valid" in listed
    run = preview(kim, "/dead-letters/replay?reason=token", rate="1000", minutes="30")
    assert "500 letters: 500 would be replayed, 0 refused" in words(kim.get(run))
    assert act(kim, f"{run}/start").status == 303
    done = until(kim, run, lambda text: "State done" in text)
    assert "Replayed 500" in done and WHY in done and "kim" in done
    assert ids(broker, topology.ORDERS_KEY) == Counter(names)
    assert ids(broker, topology.DEAD_KEY) == Counter(f"poison-{n}" for n in range(3))


def test_a_second_click_starts_nothing_again(site: Desk, broker: str) -> None:
    names = fill(broker, 20)
    kim = site.operator()
    run = preview(kim, "/dead-letters/replay?reason=token", rate="1000")
    form = kim.get(f"{run}/start").form(run)
    first, second = (kim.submit(form, reason=WHY) for _ in range(2))
    assert first.status == second.status == 303
    [(operator, reason, details)] = site.server.why("bulk.start")
    assert (operator, reason) == ("kim", WHY) and details.startswith("run 1: dlq.replay, 20 of 20")
    assert site.server.why("runs.start") == []
    other = kim.get(f"{run}/start")
    assert "was started already, by kim" in words(other)
    until(kim, run, lambda text: "State done" in text)
    assert ids(broker, topology.ORDERS_KEY) == Counter(names)
    assert audited(site.site.database, "dead.replay") == Counter(names)


def test_of_two_operators_at_once_one_acts_and_the_other_is_refused_by_name(
    site: Desk, broker: str
) -> None:
    names = fill(broker, 40)
    kim, sam = site.operator(), site.operator(name="sam")
    first = preview(kim, "/dead-letters/replay?reason=token", rate="5")
    second = preview(sam, "/dead-letters/replay?reason=token", rate="1000")
    assert act(kim, f"{first}/start").status == 303
    refused = act(sam, f"{second}/start")
    assert refused.status == 409
    assert "of kim (dlq.replay" in words(refused)
    until(sam, second, lambda text: "of kim is at work" in text)
    again = act(sam, "/dead-letters/discard?reason=token")
    assert again.status == 409 and "of kim" in words(again)
    assert act(sam, f"{first}/stop").status == 303
    stopped = until(sam, first, lambda text: "State stopped" in text)
    assert "stopped by sam" in stopped
    assert act(sam, f"{second}/start").status == 303
    done = until(sam, second, lambda text: "State done" in text)
    # What kim's run had is gone, and nothing is twice.
    assert ids(broker, topology.ORDERS_KEY) == Counter(names), done
    assert audited(site.site.database, "dead.replay") == Counter(names)


def test_a_run_goes_on_where_a_stopped_server_left_it(
    broker: str, database_url: str, with_trial: None
) -> None:
    names = fill(broker, 30)
    with desk(database_url, broker_url=broker) as one:
        kim = one.operator()
        run = preview(kim, "/dead-letters/replay", rate="2")
        assert act(kim, f"{run}/start").status == 303
        until(kim, run, lambda text: re.search(r"Replayed [1-9]", text))
        one.site.bulk.stop()
        text = until(kim, run, lambda text: "State stopped" in text)
        assert "Resume" in text
        done = len(names) - int(re.search(r"Left (\d+)", text)[1])  # type: ignore[index]
        assert 0 < done < len(names)
        refused = act(kim, f"{run}/resume")
        assert refused.status == 409 and "being stopped" in words(refused)
    with desk(database_url, broker_url=broker) as two:
        sam = two.operator(name="sam")
        hurry(two)
        assert act(sam, f"{run}/resume").status == 303
        assert "by sam" in until(sam, run, lambda text: "State done" in text)
        two.site.bulk.stop()
    assert ids(broker, topology.ORDERS_KEY) == Counter(names)
    assert audited(one.site.database, "dead.replay") == Counter(names)


def test_a_run_stops_once_its_operator_may_not_act_and_another_resumes_it(
    site: Desk, broker: str
) -> None:
    names = fill(broker, 30)
    kim, sam = site.operator(), site.operator(name="sam")
    run = preview(kim, "/dead-letters/replay", rate="2")
    assert act(kim, f"{run}/start").status == 303
    until(sam, run, lambda text: re.search(r"Replayed [1-9]", text))
    site.server.store.revoke("kim", operator="sam")
    site.site.tokens.refresh()
    text = until(sam, run, lambda text: "State running" not in text)
    assert "State stopped" in text and "kim may not act any more" in text
    assert sum(ids(broker, topology.ORDERS_KEY).values()) < len(names)
    hurry(site)
    assert act(sam, f"{run}/resume").status == 303
    until(sam, run, lambda text: "State done" in text)
    assert ids(broker, topology.ORDERS_KEY) == Counter(names)


def test_what_is_confirmed_is_what_the_preview_showed(site: Desk, broker: str) -> None:
    names = fill(broker, 5)
    kim = site.operator()
    run = preview(kim, "/dead-letters/replay?reason=token", rate="1000")
    later = [dead_letter(an_order("later"), code="token")]
    publish(broker, later)
    form = kim.get(f"{run}/start").form(run)
    form.fields["total"] = "6"
    assert "has other numbers than were confirmed" in words(kim.submit(form, reason=WHY))
    assert ids(broker, topology.ORDERS_KEY) == Counter()
    assert act(kim, f"{run}/start").status == 303
    until(kim, run, lambda text: "State done" in text)
    assert ids(broker, topology.ORDERS_KEY) == Counter(names)
    assert ids(broker, topology.DEAD_KEY) == Counter(["later"])


def test_a_viewer_may_look_and_not_act(site: Desk, broker: str) -> None:
    fill(broker, 3)
    kim, viewer = site.operator(), site.operator(Role.VIEWER, "eve")
    run = preview(kim, "/dead-letters/replay", rate="1000")
    assert "3 letters" in until(viewer, "/dead-letters", lambda text: "3 letters" in text)
    assert WHY in words(kim.get(run)) and WHY not in words(viewer.get(run))
    for path in ("/dead-letters", "/in-doubt", "/runs", run):
        reply = viewer.get(path)
        assert reply.status == 200
        assert "…" not in "".join(re.findall(r'class="button[^>]*>([^<]*)', reply.text)), path
    acts = ["/dead-letters/replay", "/dead-letters/discard", "/in-doubt/resolve"]
    acts += [f"{run}/{name}" for name in ("start", "stop", "resume")]
    for path in acts:
        assert viewer.get(path).status == 403, path
        fields = {"csrf": csrf(viewer), "form": "f" * 20, "reason": WHY}
        fields |= {"total": "3", "refused": "0", "answer": "accepted"}
        assert viewer.post(path, fields).status == 403, path
    assert ids(broker, topology.DEAD_KEY).total() == 3
    assert site.site.bulk.store.runs(10) == []


def csrf(browser: Browser) -> str:
    return browser.get("/runs").form("/logout").fields["csrf"]


def test_words_of_others_are_data(site: Desk, broker: str) -> None:
    for n, text in enumerate(_MARKUP):
        letter = dead_letter(an_order(f"o-{n}", merchant_id="m-1"), code=text)
        letter["message_id"] = text
        publish(broker, [letter])
    kim = site.operator()
    until(kim, "/dead-letters", lambda text: "3 letters" in text)
    for text in _MARKUP:
        query = urlencode({"reason": text, "merchant": text})
        for path in ("/dead-letters", "/dead-letters/replay", "/dead-letters/discard", "/in-doubt"):
            reply = kim.get(f"{path}?{query}")
            assert reply.status in (200, 404, 422)
            assert text not in reply.text
    assert all(text not in kim.get("/dead-letters").text for text in _MARKUP)
    for path in ("/runs/0", "/runs/abc", "/runs/9999", "/runs/99999999999999999999", "/runs/..%2f"):
        assert kim.get(path).status == 404, path
    for query in ("since=tomorrow", "only=x", "since=1h&until=2h", "until=0001-01-01T00:00:00"):
        reply = kim.get(f"/dead-letters?{query}")
        assert reply.status in (200, 422), query
    for name, value in (("rate", "nan"), ("rate", "0"), ("limit", "-1"), ("minutes", "99")):
        reply = act(kim, "/dead-letters/replay", **{name: value})
        assert reply.status == 409, name


def test_refusals_have_their_reasons_and_examples(site: Desk, broker: str) -> None:
    fill(broker, 4)
    publish(
        broker, [dead_letter(an_order("late", deliver_by="2020-01-01T00:00:00Z"), code="token")]
    )
    kim = site.operator()
    run = preview(kim, "/dead-letters/replay", rate="1000")
    text = words(kim.get(run))
    assert "5 letters: 4 would be replayed, 1 refused" in text
    assert "1 because" in text and "late" in text


def test_a_preview_waits_for_another_reader_whose_letters_it_would_miss(
    site: Desk, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = threading.Event()
    pause = letters.LetterWork.wait

    def noted(work: letters.LetterWork, seconds: float) -> None:
        waited.set()
        pause(work, seconds)

    monkeypatch.setattr(letters.LetterWork, "wait", noted)
    names = fill(broker, 40)
    kim = site.operator()
    with DeadLetterQueue(broker) as other:
        held = iter(other)
        assert next(held).code == "token"
        run = act(kim, "/dead-letters/replay").headers["location"].partition("?")[0]
        text = until(kim, run, lambda text: waited.is_set() or "is being previewed" not in text)
        assert "40 letters" not in text and waited.is_set()
        counted = LetterCount(broker, site.site.database, site.site.bulk, SYSTEM_CLOCK)
        counted._last = before = CountedLetters(0.0, (), 7, {})
        assert counted._counted() is before
    until(kim, run, lambda text: f"{len(names)} letters: 40 would be replayed" in text)


def test_orders_in_doubt_are_listed_and_resolved_as_their_merchant_answered(
    site: Desk, broker: str, database_url: str
) -> None:
    books = Books(database_url, order, None)
    reason = Reason("timeout", "no reply in time")
    at = time.time() - 900
    for n in range(60):
        books.order(f"d-{n}", State.IN_DOUBT, reason=reason, at=at + n)
    kim = site.operator()
    listed = words(kim.get("/in-doubt"))
    assert "60 orders" in listed and "timeout" in listed and "d-0 " in listed
    more = re.search(r'rel="next" href="([^"]+)"', kim.get("/in-doubt").text)
    assert more and "d-59 " not in listed
    assert "d-59 " in words(kim.get(html.unescape(more[1])))
    assert "No order matches" in words(kim.get("/in-doubt?reason=other"))
    assert act(kim, "/in-doubt/resolve", answer="").status == 409  # says no answer
    run = preview(kim, "/in-doubt/resolve?reason=timeout", answer="accepted", rate="1000")
    assert "60 orders: 60 would be accepted, 0 refused" in words(kim.get(run))
    # One is resolved meanwhile: its merchant has another answer by now.
    seen = books.order_admin.find("d-7", None)
    assert (
        act(kim, f"/merchants/{seen.merchant_id}/orders/d-7/resolve", answer="accepted").status
        == 303
    )
    assert act(kim, f"{run}/start").status == 303
    done = until(kim, run, lambda text: "State done" in text)
    assert "Accepted 59" in done and "Refused 1" in done
    assert {x.state for x in books.order_admin.orders()} == {State.ACCEPTED}
    books.close()


def test_a_hundred_viewers_read_the_letters_once(
    site: Desk, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 10)
    count = LetterCount(broker, site.site.database, site.site.bulk, SYSTEM_CLOCK)
    reads, read = [], count._counted

    def counted() -> CountedLetters:
        reads.append(1)
        return read()

    monkeypatch.setattr(count, "_counted", counted)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: count.look(again=True), range(100)))
    end = time.monotonic() + PATIENCE
    while count.last is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    for _ in range(10):
        count.look(again=True)
    assert len(reads) == 1
    count._next_at = 0.0
    previews = site.site.bulk.store.previews
    previews.prepare(BulkAction.REPLAY, operator="kim", filter_={}, options={})
    assert previews.is_being_made(Subject.LETTERS) and not previews.is_being_made(Subject.DOUBT)
    count.look(again=True)  # another server's preview is to be alone with the letters
    assert not count.is_reading and len(reads) == 1


@pytest.mark.parametrize(
    ("seconds", "is_silent"), [(-130, True), (-60, False), (60, False), (86_400, True)]
)
def test_a_preview_whose_server_has_ended_is_offered_to_begin_again(
    site: Desk, seconds: int, is_silent: bool
) -> None:
    """After a write of late, or one ahead of the database's clock, which was set back."""
    options: dict[str, Any] = {"filter_": {}, "options": {}}
    previews = site.site.bulk.store.previews
    run = previews.prepare(BulkAction.REPLAY, operator="kim", **options)
    with site.site.database.begin() as connection:
        connection.execute(update(bulk_runs).values(updated_at=bulk_runs.c.updated_at + seconds))
    text = words(site.operator().get(f"/runs/{run}"))
    assert ("Begin again" in text, "is being previewed" in text) == (is_silent, not is_silent)


def test_a_run_whose_server_was_killed_is_offered_to_resume(
    site: Desk, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = fill(broker, 10)
    kim, sam = site.operator(), site.operator(name="sam")
    run = preview(kim, "/dead-letters/replay", rate="1000")
    with monkeypatch.context() as patched:
        patched.setattr(store, "LEASE", 0.0)  # no process is there that renews it
        site.site.bulk.store.take(int(run.rpartition("/")[2]), operator="kim")
    text = until(sam, run, lambda text: "It was interrupted" in text)
    assert "Resume…" in text
    assert act(sam, f"{run}/resume").status == 303
    assert "by sam" in until(sam, run, lambda text: "State done" in text)
    assert ids(broker, topology.ORDERS_KEY) == Counter(names)
