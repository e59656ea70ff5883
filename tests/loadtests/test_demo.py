"""The demo: its books, and the whole of it once."""

import subprocess
import sys
from pathlib import Path

from loadtests.demo.books import PARTS, Books

ROOT = Path(__file__).parents[2]


def an_order(order_id: str, merchant_id: str = "fast-1") -> dict[str, str]:
    return {"order_id": order_id, "merchant_id": merchant_id}


def an_event(order_id: str, kind: str = "order.accepted") -> dict[str, str]:
    return {**an_order(order_id), "type": kind}


def books_with(*order_ids: str) -> Books:
    books = Books()
    for order_id in order_ids:
        books.about_to_submit(an_order(order_id), 1.0)
        books.submitted(an_order(order_id))
    return books


def test_books_that_add_up_have_no_problems() -> None:
    books = books_with("a", "b")
    books.add(an_event("a"), 1.5)
    books.add(an_event("b", "order.pending"), 1.5)
    books.add(an_event("b", "order.in_doubt"), 2.0)
    assert books.all_ended
    assert books.problems(doubled=0, created={"healthy": 1}) == []
    assert books.scores["healthy"].percentile(0.5) == 0.5


def test_every_way_of_not_adding_up_is_told() -> None:
    books = books_with("open", "twice")
    books.add(an_event("twice"), 2.0)
    books.add(an_event("twice"), 2.0)
    books.add(an_event("unplaced"), 2.0)
    problems = books.problems(doubled=3, created={"healthy": 0})
    assert len(problems) == 5
    assert not books.all_ended


def test_the_demo_ends_by_itself_and_accounts_for_every_order() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pos_gateway", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "orders are accounted for, none was made twice" in done.stdout
    assert "Traceback" not in done.stderr
    for part in PARTS:
        assert f"{part.merchants} {part.name}" in done.stdout
