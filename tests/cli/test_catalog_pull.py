"""``pos-gateway merchants catalog pull``: what it shows, and that nothing is written unasked or in part.

| adversary | what becomes of it |
|---|---|
| no --apply, and no person to ask; a no | the changes are shown, nothing is written |
| a second pull | nothing is different |
| the POS refuses, or its list has no end, after some pages | nothing is written, a sentence and a remedy |
| a catalog of more entries than a merchant's may have | nothing is written, the numbers |
| another operator's import while the question is open | nothing is written |
| a POS without any item here, a merchant of an adapter without a list, an unknown merchant | a sentence |
| hostile names | one printable line each |
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pos_gateway.cli import catalog_pull
from pos_gateway.runtime.vault import new_key
from testkit.vendors import clover, square
from testkit.vendors.clover.shop import item
from testkit.vendors.sellers import Sellers
from testkit.vendors.square.access import SCOPES, Token
from testkit.vendors.square.catalog import Listed
from testkit.vendors.way import Trouble, Way
from tests.cli.conftest import Program
from tests.cli.test_merchants_command import json_lines

PULL = ("merchants", "catalog", "pull")


@pytest.fixture
def here(migrated: Program) -> Program:
    """The program, with a key for secrets, where merchants may be on this machine."""
    migrated.settings["POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES"] = "true"
    migrated.settings["POS_GATEWAY_SECRET_KEY"] = new_key()
    return migrated


@pytest.fixture
def within(here: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The same, in this process, whose threads are not green."""
    monkeypatch.setattr(catalog_pull, "become_green", lambda *_: None)
    monkeypatch.setattr(
        catalog_pull, "configure", lambda *_: None
    )  # of the process, which has other tests
    monkeypatch.setattr(catalog_pull, "PACE", 0.0)
    return here


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person is at the keyboard."""
    monkeypatch.setattr(catalog_pull, "_is_asked", lambda: True)


class Market:
    """A seller at Square and a shop at Clover, whose merchants have these names."""

    def __init__(self) -> None:
        self.sellers = Sellers()
        self.square = square.simulator(lambda: datetime.now(UTC))
        self.square.access.access["square"] = Token(None, frozenset(SCOPES))
        self.catalog = self.square.catalog
        self.clover = clover.simulator(lambda: datetime.now(UTC))
        self.clover.access.tokens["clover"] = None
        self.ways = self.sellers.ways
        self.ways |= {"square": Way(self.square), "clover": Way(self.clover)}

    def records(self, url: str) -> Iterator[dict[str, Any]]:
        for name, pos in (("square", {"location_id": "L1"}), ("clover", {"merchant_id": "M1"})):
            auth = {"type": "bearer", "token": name}
            own = {"id": name, "adapter": name, "base_url": url, "request_timeout": 30}
            yield {**own, "pos": pos, "auth": auth}


@pytest.fixture
def market(here: Program) -> Iterator[Market]:
    """Both, with a burger, and the merchants' records imported."""
    made = Market()
    made.catalog.variations["V1"] = Listed("Burger", 850, sku="burger")
    made.catalog.modifiers["M1"] = Listed("Cheese", 50)
    with made.sellers.served() as url:
        records = [*made.records(url), {"id": "plain", "base_url": url}]
        done = here.invoke("merchants", "import", "-", stdin=json_lines(*records))
        assert done.exit_code == 0, done.stderr
        yield made


def shown(program: Program, merchant_id: str = "square") -> list[str]:
    return program.invoke("merchants", "catalog", "show", merchant_id).stdout.splitlines()[1:]


def entries(program: Program, **catalog: str) -> None:
    lines = [{"merchant_id": "square", "sku": sku, "pos_id": each} for sku, each in catalog.items()]
    done = program.invoke("merchants", "catalog", "import", "-", stdin=json_lines(*lines))
    assert done.exit_code == 0, done.stderr


def test_the_program_shows_the_changes_and_writes_them_when_it_is_told_to(
    here: Program, market: Market
) -> None:
    entries(here, soup="V0", mine="V1")
    done = here.run(*PULL, "square")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "CHANGE\tSKU\tPOS_ID\tNAME\tPRICE",
            "added\tM1\tM1\tCheese\t50 USD",
            "added\tburger\tV1\tBurger\t850 USD",
            "gone\tsoup\tV0\t\t",
        ],
    )
    assert done.stderr.splitlines() == [
        "2 added, 0 changed, 1 gone, 0 unclear, 1 as before",
        "entries that are gone stay, and their orders are rejected; --remove-gone removes them",
        "nothing was written; --apply writes the changes",
    ]
    assert shown(here) == ["mine\tV1", "soup\tV0"]

    done = here.run(*PULL, "square", "--apply", "--reason", "-- the new menu", "--as", "kim")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        0,
        "the catalog of square was written: 4 entries",
    )
    assert shown(here) == ["M1\tM1", "burger\tV1", "mine\tV1", "soup\tV0"]
    [line] = [
        each
        for each in here.invoke("audit", "--json").stdout.splitlines()
        if "the new menu" in each
    ]
    assert json.loads(line)["operator"] == "kim"


def test_a_second_pull_finds_nothing_to_write(within: Program, market: Market) -> None:
    assert within.invoke(*PULL, "clover", "--apply").exit_code == 0
    before = shown(within, "clover")
    assert "BURGER\tBURGER" in before and "CHEESE\tCHEESE" in before
    done = within.invoke(*PULL, "clover", "--apply")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == "nothing is different, and nothing was written"
    assert shown(within, "clover") == before


def test_names_and_prices_are_shown_before_and_after(within: Program, market: Market) -> None:
    entries(within, burger="OLD", cheese="M1")
    market.catalog.variations["OLD"] = Listed("Old burger", 800)
    market.catalog.variations["V2"] = Listed("Soup\x1b[31m\n", 500, sku="soup", is_sold_out=True)
    market.catalog.variations["V3"] = Listed("Soup of the day", 550, sku="soup")
    done = within.invoke(*PULL, "square")
    lines = done.stdout.splitlines()
    assert "changed\tburger\tOLD -> V1\tOld burger -> Burger\t800 USD -> 850 USD" in lines
    [unclear] = [each for each in lines if each.startswith("unclear")]
    assert unclear.startswith("unclear\tsoup\tV2, V3\tSoup") and "\x1b" not in unclear
    assert unclear.endswith("\t500 USD, 550 USD")
    assert "1 of the POS's items are sold out" in done.stderr
    records = within.invoke(*PULL, "square", "--json").stdout.splitlines()
    by_sku = {each["sku"]: each for each in map(json.loads, records)}
    assert by_sku["burger"]["before"] == {
        "pos_id": "OLD",
        "name": "Old burger",
        "price": 800,
        "currency": "USD",
        "is_modifier": False,
        "is_sold_out": False,
    }
    assert [each["pos_id"] for each in by_sku["soup"]["now"]] == ["V2", "V3"]


def test_what_is_gone_is_removed_if_it_is_told_to(within: Program, market: Market) -> None:
    entries(within, soup="V0", burger="V1", M1="M1")
    assert "nothing is different" in within.invoke(*PULL, "square", "--apply").stderr
    within.invoke(*PULL, "square", "--apply", "--remove-gone")
    assert shown(within) == ["M1\tM1", "burger\tV1"]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("answer", "written"), [("y\n", 2), ("n\n", 0), ("", 0)])
def test_a_person_is_asked(within: Program, market: Market, answer: str, written: int) -> None:
    done = within.invoke(*PULL, "square", stdin=answer)
    assert "Write these changes? [y/N]" in done.stderr
    assert len(shown(within)) == written


@pytest.mark.usefixtures("asked")
def test_another_operator_s_import_is_not_overwritten(
    within: Program, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(*_: Any, **__: Any) -> bool:
        entries(within, other="V9")
        return True

    monkeypatch.setattr(catalog_pull.click, "confirm", confirm)
    done = within.invoke(*PULL, "square")
    assert (done.exit_code, shown(within)) == (1, ["other\tV9"])
    assert "was changed meanwhile; pull again" in done.stderr


def _ends_its_token(market: Market) -> None:
    market.square.access.access["square"].is_revoked = True


def _lacks_a_scope(market: Market) -> None:
    market.square.access.access["square"] = Token(None, frozenset({"ORDERS_READ"}))


def _breaks_off(market: Market) -> None:
    """After a page."""
    market.square.knobs.catalog_page = 1
    market.ways["square"].troubles += [
        Trouble("slow", path="/v2/catalog/list"),
        Trouble("before", path="/v2/catalog/list", times=9),
    ]


def _has_nothing(market: Market) -> None:
    market.catalog.variations.clear()
    market.catalog.modifiers.clear()


def _has_too_much(market: Market) -> None:
    for number in range(10_001):
        market.catalog.variations[f"N{number}"] = Listed("x", 1)


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (_ends_its_token, "/v2/catalog/list: the POS answered 401; is the credential right, and"),
        (
            _lacks_a_scope,
            "/v2/catalog/list: the POS answered 403; does the credential have ITEMS_R",
        ),
        (_breaks_off, "'square': "),
        (_has_nothing, "the POS lists no item for this location; does pos name the right one?"),
        (_has_too_much, "would have 10003 entries, and may have 10000: write those that orders"),
    ],
)
def test_nothing_is_written_of_a_catalog_that_is_not_whole(
    within: Program, market: Market, happens: Callable[[Market], None], said: str
) -> None:
    entries(within, burger="V0")
    happens(market)
    done = within.invoke(*PULL, "square", "--apply")
    assert (done.exit_code, shown(within)) == (1, ["burger\tV0"])
    assert said in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("merchant_id", "said"),
    [
        ("plain", "the adapter 'rest' reads no catalog from its POS; clover, square, toast do"),
        ("squere", "no merchant has the id 'squere'; did you mean 'square'?"),
    ],
)
def test_a_merchant_without_a_list_is_a_sentence(
    within: Program, market: Market, merchant_id: str, said: str
) -> None:
    done = within.invoke(*PULL, merchant_id)
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr


def test_requests_are_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, now = list[float](), [100.0]
    monkeypatch.setattr(catalog_pull.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(catalog_pull.time, "sleep", slept.append)
    paced = catalog_pull._Paced(lambda request: request)  # type: ignore[arg-type, return-value]
    for wait in (0.0, 0.25, 5.0):
        now[0] += wait
        paced("request")  # type: ignore[arg-type]
    assert slept == [0.0, 0.75, 0.0]


def test_a_shop_of_a_thousand_items_is_pulled_whole(within: Program, market: Market) -> None:
    more = {f"I{n}": item(f"I{n}", f"Item {n}", n, sku=f"sku-{n}") for n in range(1200)}
    market.clover.shop.items |= more
    assert within.invoke(*PULL, "clover", "--apply").exit_code == 0
    assert len(shown(within, "clover")) == 1205
