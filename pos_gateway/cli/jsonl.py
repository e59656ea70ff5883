"""JSON Lines from outside: read with bounded memory, parsed strictly."""

import json
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO

from pos_gateway.cli.failure import Failure
from pos_gateway.domain.errors import ABSENT, FieldError, InvalidRecord
from pos_gateway.domain.record import WHOLE

#: Maximum bytes of a line.
LINE_LIMIT = 16 * 2**20
#: Maximum bytes of a file of records, which is held in memory: all or nothing.
FILE_LIMIT = 256 * 2**20
#: The byte order mark that some editors put before UTF-8.
BOM = b"\xef\xbb\xbf"
#: An import's failure: in a pipe the program before may have failed.
EMPTY = "no record was read, and nothing was written"


def lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Every line that is not blank, with its number; None stands for one that is too long."""
    number = 0
    while line := stream.readline(LINE_LIMIT + 1):
        number += 1
        if len(line) > LINE_LIMIT:
            while not line.endswith(b"\n") and (line := stream.readline(2**16)):
                pass  # skip the rest, a block at a time
            yield number, None
            continue
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.isspace() and line:
            yield number, line.strip()


def decode(line: bytes | None, *, excerpt: bool = True) -> Any:
    """The line's value.

    Args:
        line: from ``lines``.
        excerpt: whether the error may show how the line begins.

    Raises:
        InvalidRecord: too long, not UTF-8, not JSON, a key given twice, NaN, nested too deeply.
    """
    if line is None:
        raise InvalidRecord([FieldError(WHOLE, f"the line is longer than {LINE_LIMIT} bytes")])
    try:
        return parse(line)
    except ValueError as error:
        shown = line[:100].decode(errors="backslashreplace") if excerpt else ABSENT
        raise InvalidRecord([FieldError(WHOLE, str(error), shown)]) from None


def parse(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError with a sentence that fits a FieldError."""
    try:
        decoded = text.decode()
        value = json.loads(decoded, object_pairs_hook=_object, parse_constant=_constant)
        if "\\ud" in decoded.lower():
            _require_whole_characters(value)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"is not UTF-8 (byte 0x{byte:02x} at offset {error.start})") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"is not JSON: {error.msg} ({line}column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return value


def records(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Every record with its place; InvalidRecord for one that cannot be decoded.

    The error shows nothing of the line, which may hold secrets.

    Raises:
        Failure: the file cannot be read, or is too large.
    """
    text = _text(file)
    try:
        value = parse(text)
    except ValueError as error:
        if text.lstrip().startswith(b"["):
            yield "the list", InvalidRecord([FieldError(WHOLE, str(error))])
        else:
            yield from _records(text)
        return
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        yield f"record {number}", record


def _text(file: BinaryIO) -> bytes:
    try:
        text = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise Failure(f"cannot read {file.name}: {error.strerror}") from error
    if len(text) > FILE_LIMIT:
        raise Failure(f"{file.name} is longer than {FILE_LIMIT} bytes; import it in parts")
    return text.removeprefix(BOM)


def _records(text: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in lines(BytesIO(text)):
        try:
            yield f"line {number}", decode(line, excerpt=False)
        except InvalidRecord as error:
            yield f"line {number}", error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Which of the two was meant is unknown.
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"gives the key {twice[:100]!r} twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _require_whole_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("has half a character (a lone surrogate such as \\ud800)") from None
