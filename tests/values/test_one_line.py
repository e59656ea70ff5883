"""Untrusted text as one line: no word is split, and nothing in it turns or hides its neighbours."""

import pytest

from pos_gateway.domain.outcome import one_line

KEPT = (
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian: "I want"
    "\u0dc1\u0dca\u200d\u0dbb\u0dd3",  # Sinhala: "Sri"
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 eat",  # a family
    "\u05e9\u05dc\u05d5\u05dd Zo\u00eb \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001fae9",  # an emoji of Unicode 16
    "a\ue000b",  # of a vendor's own font
)
CHANGED = (
    ("Stra\u00adße", "Straße"),
    ("\u200eNo. 5\u200f", "No. 5"),
    ("soup\u202edetceles\u202c, \u2066x\u2069\u061c", "soup detceles , x"),
    ("\ufeffsoup\u200b\u2060s", "soups"),
    ("a\U000e0041\U000e007fb", "ab"),
    ("a\tb\r\nc\u2028d\u2029e\x85f\x00g\x1b[31mh\xa0i\u3000j", "a b c d e f g [31mh i j"),
    ("a\ud800b", "a b"),
    ("  a  ", "a"),
    ("\u202e\u200b", ""),
    ("\u200d", ""),
    ("\u200d\u200c Zo\u00eb\u200d \u200cx", "Zo\u00eb x"),
)


@pytest.mark.parametrize("text", KEPT)
def test_a_word_stays_whole(text: str) -> None:
    assert one_line(text) == text


@pytest.mark.parametrize(("text", "line"), CHANGED)
def test_a_text_is_one_line_without_what_is_invisible(text: str, line: str) -> None:
    assert one_line(text) == line
    assert one_line(line) == line
