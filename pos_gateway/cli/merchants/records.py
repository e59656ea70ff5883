"""A file of records: one JSON object a line, or one list."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO

from pos_gateway.cli import jsonl
from pos_gateway.cli.failure import Failure
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.record import WHOLE

#: Maximum bytes of a file, which is held in memory: all or nothing.
FILE_LIMIT = 256 * 2**20


def records(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Every record with its place; InvalidLine for one that cannot be decoded.

    The error shows nothing of the line, which may hold secrets.

    Raises:
        Failure: the file cannot be read, or is too large.
    """
    text = _text(file)
    try:
        value = jsonl.parse(text)
    except ValueError as error:
        if text.lstrip().startswith(b"["):
            yield "the list", jsonl.InvalidLine(FieldError(WHOLE, str(error)))
        else:
            yield from _lines(text)
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
    return text.removeprefix(jsonl.BOM)


def _lines(text: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in jsonl.lines(BytesIO(text)):
        try:
            yield f"line {number}", jsonl.decode(line, excerpt=False)
        except jsonl.InvalidLine as error:
            yield f"line {number}", error
