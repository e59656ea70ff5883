"""Words of a merchant, a POS or a backend: data, whatever they contain.

They are escaped, isolated by ``<bdi>`` and bounded; characters that are not seen, or that turn the
text around them, are shown by their number.
"""

import unicodedata
from typing import Any

from markupsafe import Markup, escape

#: Maximum characters that are shown.
SHOWN = 300
#: Maximum marks above and below one letter: more would cover other lines.
_MARKS = 4
#: Letters without a shape, which are no format characters.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
#: Format characters that languages and pictures need; they turn nothing around.
_NEEDED = frozenset("\u200c\u200d")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def data(value: Any, shown: int = SHOWN) -> Markup:
    """Foreign words as HTML; an em dash for none."""
    if value is None or value == "":
        return Markup('<span class="none">—</span>')
    text = value if isinstance(value, str) else str(value)
    parts = [
        Markup('<span class="ctl">{}</span>').format(each) if is_code else escape(each)
        for each, is_code in _pieces(text[:shown])
    ]
    if len(text) > shown:
        parts.append(Markup('<span class="cut">… {} characters</span>').format(f"{len(text):,}"))
    return Markup('<bdi class="data">{}</bdi>').format(Markup("").join(parts))


def plain(value: Any, shown: int = SHOWN) -> str:
    """The same as text, for an attribute or a title."""
    text = value if isinstance(value, str) else str(value)
    cut = "…" if len(text) > shown else ""
    return "".join(each for each, _ in _pieces(text[:shown])) + cut


def _pieces(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it stands for a character that is not seen."""
    pieces: list[tuple[str, bool]] = []
    run: list[str] = []
    marks = 0
    for each in text:
        category = unicodedata.category(each)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MARKS:
            continue
        if (category in _HIDDEN and each not in _NEEDED) or each in _BLANK:
            pieces += [("".join(run), False), (_name(each), True)]
            run.clear()
        else:
            run.append(each)
    pieces.append(("".join(run), False))
    return [piece for piece in pieces if piece[0]]


def _name(character: str) -> str:
    number = ord(character)
    if number < 0x20:
        return chr(0x2400 + number)  # the pictures of control characters
    return "␡" if number == 0x7F else f"U+{number:04X}"
