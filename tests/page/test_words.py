"""Foreign words, times and charts."""

import re
from xml.etree import ElementTree

import pytest

from pos_gateway.server.page import words
from pos_gateway.server.page.charts import Series, chart
from pos_gateway.server.page.foreign import SHOWN, data, plain
from tests.page.lab import Desk

NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'\"`=/",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;",
    "\u202eevil\u202c",
    "\u2066a\u2069",
    "a\x00b\x1b[31m\x7f\x85",
    "z\u0310\u0311\u0312\u0313\u0314\u0315\u0316\u0317\u0318",
    "\ud800",
    "\U000e0041\ufeff\u200b",
    "]]>--></title></bdi></main>",
    "a" * 1_000_000,
    "\U0001f3f3\ufe0f\u200d\U0001f308 \u200c\u062e\u0627",
]


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_foreign_words_are_data(text: str) -> None:
    html = data(text)
    root = ElementTree.fromstring(html)  # it is well-formed: nothing is open behind it
    assert root.tag == "bdi"
    assert {each.tag for each in root.iter()} <= {"bdi", "span"}
    shown = "".join(root.itertext())
    assert not re.search(
        "[\u202a-\u202e\u2066-\u2069\u0000-\u001f\u007f-\u009f\ufeff\u200b]", shown
    )
    assert len(shown) < SHOWN + 60
    html.encode()
    plain(text).encode()
    assert not re.search("[\u202a-\u202e\x00-\x1f]", plain(text))


@pytest.mark.parametrize("text", NASTY[:-2], ids=range(len(NASTY) - 2))
def test_a_page_escapes_foreign_words_wherever_they_stand(page: Desk, text: str) -> None:
    from urllib.parse import quote

    browser = page.operator()
    reply = browser.get("/trial?says=" + quote(text.replace("\0", ""), errors="replace"))
    assert reply.status == 200
    assert "<script>alert" not in reply.text
    assert "<img" not in reply.text
    assert "49" not in reply.text.partition("<main")[2]
    assert reply.text.count("</main>") == 1
    assert reply.text.count("</title>") == 1


def test_hidden_characters_are_shown_by_their_number() -> None:
    assert data("a\u202eb") == '<bdi class="data">a<span class="ctl">U+202E</span>b</bdi>'
    assert "␛" in data("\x1b[0m")
    assert data("") == data(None) == '<span class="none">—</span>'
    assert "1,000,000 characters" in data("a" * 1_000_000)


def test_letters_that_need_a_format_character_keep_it() -> None:
    assert "\u200d" in data("👩\u200d🍳")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0 ms"), (0.0234, "23 ms"), (0.9996, "1.0 s"), (1.23, "1.2 s"), (59.97, "1 min"), (None, "—"), (3725, "1 h 2 min")],
)  # fmt: skip
def test_seconds(value: float | None, shown: str) -> None:
    assert words.seconds(value) == shown


def test_a_moment_has_its_seconds_and_how_long_ago_it_was() -> None:
    at = 1_700_000_000.0
    assert words.moment(at, at + 125) == (
        '<time datetime="2023-11-14T22:13:20Z">22:13:20 UTC <small>2 min 5 s ago</small></time>'
    )
    assert "2023-11-14 22:13:20 UTC <small>30 days ago" in words.moment(at, at + 30 * 86_400)
    assert "in 1 min" in words.moment(at, at - 60)
    assert "no date" in words.moment(1e300)


AT = [1_700_000_000.0 + 60 * number for number in range(60)]


def test_a_chart_is_read_by_programs_and_has_no_style() -> None:
    columns = [
        Series("accepted", "c-accepted", [float(n) for n in range(60)]),
        Series("<failed>", "c-failed", [1.0] * 60),
    ]
    html = chart(
        "Orders & more", AT, columns=columns, lines=[Series("in", "c-taken", [None] * 59 + [9])]
    )
    root = ElementTree.fromstring(html)
    svg = root.find("./div/svg")
    assert svg is not None
    ids = {each.get("id"): each.text for each in svg if each.get("id")}
    title, desc = str(svg.get("aria-labelledby")).split()
    assert ids[title] == "Orders & more"
    assert "accepted: 59 at last, highest 59 at 23:12, lowest 0." in str(ids[desc])
    assert "style" not in html
    rects = [each for each in root.iter("rect") if each.get("class") != "hover"]
    assert len(rects) == 59 + 60
    assert all(float(str(each.get("y"))) >= -0.01 for each in rects)


@pytest.mark.parametrize("values", [[0.0] * 60, [None] * 60, [1e9] * 60, [0.004] * 60, [1e-9] * 60])
def test_a_chart_takes_any_values(values: list[float | None]) -> None:
    html = chart("A", AT, lines=[Series("a", "c-p50", values)], shown=words.seconds)
    assert "nan" not in html.lower()
    ElementTree.fromstring(html)


def test_a_line_does_not_run_along_the_upper_edge() -> None:
    """A line is half as wide as it is drawn there: waits that are all as long as can be told."""
    html = chart("A", AT, lines=[Series("a", "c-p99", [30.0] * len(AT))], shown=words.seconds)
    heights = [
        float(each)
        for each in re.findall(r"[ML][0-9.]+ ([0-9.]+)", html.partition('class="line')[2])
    ]
    assert heights and min(heights) > 3


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing was counted yet" in chart("A", [])
    ElementTree.fromstring(chart("A", AT[:1], lines=[Series("a", "c-p50", [1.0])]))
