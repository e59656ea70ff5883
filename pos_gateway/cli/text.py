"""External text for a terminal: escaped here, and nowhere else."""

import json
from typing import Any

from pos_gateway.domain.outcome import JOINERS


def printable(text: object) -> str:
    """The text in one line, with control characters (escape sequences) escaped."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in JOINERS else repr(c)[1:-1] for c in text)


def json_text(value: Any, **layout: Any) -> str:
    """The value as JSON with unprintable characters escaped: C1, DEL, text direction, surrogates.

    A JSON parser reads the same value.
    """
    text = json.dumps(value, ensure_ascii=False, **layout)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
