"""What a JSON text says that its parser does not: numbers that are none, and where a member stands."""

import json
import re
from collections.abc import Iterator
from math import isfinite
from typing import Any

from pydantic_core import from_json

_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
#: With a zero for every digit: what a number has that is too large for a float.
_LARGE = re.compile(rb"0[eE]\+?000")
_LONG = b"0" * 200
_BLANKS = re.compile(r"[ \t\n\r]*")
#: Numbers stay text: what is looked for is where a value ends.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def is_finite(text: bytes) -> bool:
    """Whether all numbers of a JSON text are some: no NaN, no infinity, no 1e999.

    Readers disagree on the first two, and make an infinity or an error of the last.
    """
    digits = text.translate(_ZEROS)
    if not (b"NaN" in text or b"Inf" in text or _LONG in digits or _LARGE.search(digits)):
        return True
    left: list[Any] = [from_json(text)]
    while left:
        match left.pop():
            case float(number) if not isfinite(number):
                return False
            case dict(members):
                left.extend(members.values())
            case list(items):
                left.extend(items)
    return True


def with_text(text: bytes, name: str, value: str) -> bytes:
    """A JSON object's text with another text for this member, everything else byte for byte."""
    whole = text.decode()
    at = [(begin, end) for each, begin, end in _members(whole) if each == name]
    for begin, end in reversed(at):
        whole = whole[:begin] + json.dumps(value) + whole[end:]
    return whole.encode()


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Each member of an object that is valid: its name, where its value begins and ends."""
    at = _after_blanks(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        begin = _after_blanks(text, _after_blanks(text, at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield name, begin, end
        at = _after_blanks(text, end)
        if text[at] == ",":
            at = _after_blanks(text, at + 1)


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at
