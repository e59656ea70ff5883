"""JSON text beyond its parser: non-finite numbers, and the offsets of members."""

import json
import re
from collections.abc import Iterator
from math import isfinite

#: No possessive group: Python 3.11.7 corrupted its memory over one (workers crashed).
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
#: A zero for every digit, and for a plus sign.
_ZEROS = bytes.maketrans(b"+123456789E", b"0" * 10 + b"e")
#: Marks of a number that may overflow a float.
_LONG, _EXPONENT = b"0" * 200, b"0e000"
#: Punctuation becomes blanks; the shortest number that overflows is 1e309.
_BETWEEN = bytes.maketrans(b"[]{},:", b" " * 6)
_SHORTEST = 5
_BLANKS = re.compile(r"[ \t\n\r]*")
#: Numbers stay text: only the end of a value is needed.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def is_finite(text: bytes) -> bool:
    """Whether all numbers of a JSON text are finite: no NaN, no infinity, no 1e999.

    Parsers disagree on the first two, and read the last as infinity or an error.
    """
    if not _may_be_infinite(text):
        return True
    outside = _STRING.sub(b"", text)
    if b"N" in outside or b"I" in outside:
        return False
    tokens = outside.translate(_BETWEEN).split()
    long = (each for each in tokens if len(each) >= _SHORTEST and each != b"false")
    # An integer never overflows.
    return all(isfinite(float(each)) for each in long if not each.lstrip(b"-").isdigit())


def _may_be_infinite(text: bytes) -> bool:
    # One letter is found ten times as quickly as three.
    if (b"N" in text and b"NaN" in text) or (b"I" in text and b"Inf" in text):
        return True
    digits = text.translate(_ZEROS)
    return _EXPONENT in digits or _LONG in digits


def with_text(text: bytes, name: str, value: str) -> bytes:
    """A JSON object's text with this member replaced by a string, all else byte for byte."""
    whole = text.decode()
    at = [(begin, end) for each, begin, end in members(whole) if each == name]
    for begin, end in reversed(at):
        whole = whole[:begin] + json.dumps(value) + whole[end:]
    return whole.encode()


def members(text: str) -> Iterator[tuple[str, int, int]]:
    """Each member of a valid object's text: its name, and its value's start and end."""
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
