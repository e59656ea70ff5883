"""The base of external records (orders, merchants), and their error reports."""

import re
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from pos_gateway.domain.errors import ABSENT, FieldError

#: Separators of a path, as servers and proxies may see it.
_DIVIDED = re.compile(r"[/\\;?#]")


def has_dot_segment(text: str) -> bool:
    """Whether a URL path with it may lead elsewhere: ``..``, also with ``/`` or ``%2e``."""
    if "." not in text and "%" not in text:
        return False
    return not {".", ".."}.isdisjoint(_DIVIDED.split(unquote(text)))


def _no_dot_segment(value: str) -> str:
    if has_dot_segment(value):
        raise ValueError("must not be . or .., nor have either between slashes: it goes into URLs")
    return value


#: Safe in an HTTP header, a message's properties, the database and, quoted, in a URL: visible
#: ASCII, and no way to another path.
IDENTIFIER = r"^[\x21-\x7e]{1,128}$"
Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER), AfterValidator(_no_dot_segment)]
_IDENTIFIER = re.compile(IDENTIFIER)
#: The field name of an error in the record as a whole.
WHOLE = "(record)"
#: Money in the currency's minor unit (cents), never a float: 12.50 is 1250.
Money = Annotated[int, Field(strict=True, ge=0, le=2**53)]


def identifier(value: Any) -> str | None:
    """The value if it is an identifier, else None: for records not validated yet."""
    is_one = isinstance(value, str) and _IDENTIFIER.fullmatch(value) and not has_dot_segment(value)
    return value if is_one else None


#: Maximum errors reported for a record, which may have one per byte.
MAX_ERRORS = 20
#: Maximum characters of a reported field name: an unknown one may be as long as a record.
_NAME = 200


def field_errors(error: ValidationError) -> list[FieldError]:
    """A pydantic error as one entry per field, ``items[0].quantity`` style; twenty at most."""
    entries = error.errors(include_url=False)
    # Of a field and its parent only the field is reported.
    parents = {
        entry["loc"][:depth]
        for entry in entries
        for depth, part in enumerate(entry["loc"])
        if isinstance(part, int)
    }
    wrong = [entry for entry in entries if entry["loc"] not in parents]
    problems = [
        FieldError(_path(each["loc"]), _problem(each), _shown(each)) for each in wrong[:MAX_ERRORS]
    ]
    if len(wrong) > MAX_ERRORS:
        problems.append(FieldError(WHOLE, f"… and {len(wrong) - MAX_ERRORS} more"))
    return problems


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:_NAME]}"
    return path.lstrip(".") or WHOLE


def _problem(entry: Any) -> str:
    match entry["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return "is not a field of this record"
        case "tuple_type":
            return "should be a list"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "should be an object"
        case "value_error":  # raised by our own validators
            return str(entry["ctx"]["error"])
        case _:
            message = str(entry["msg"])
            return message[0].lower() + message[1:]


def _shown(entry: Any) -> Any:
    # For a missing field pydantic's input is the whole parent: useless, and perhaps personal.
    return ABSENT if entry["type"] == "missing" else entry["input"]


class Record(BaseModel):
    """An immutable value; unknown fields are kept and passed on."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        str_max_length=4096,
        ser_json_inf_nan="constants",  # detected and refused; by default pydantic writes null
    )
