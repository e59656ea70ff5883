"""What the records from outside (orders, merchants) have in common: how they say what is wrong."""

import re
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, ValidationError

from pos_gateway.errors import ABSENT, FieldError

#: Where a path is divided, as servers and proxies in front of them may see it.
_DIVIDED = re.compile(r"[/\\;?#]")


def has_dot_segment(text: str) -> bool:
    """Whether a URL with it in its path may lead elsewhere: ``..``, also with ``/`` or ``%2e``."""
    if "." not in text and "%" not in text:
        return False
    return not {".", ".."}.isdisjoint(_DIVIDED.split(unquote(text)))


def _no_dot_segment(value: str) -> str:
    if has_dot_segment(value):
        raise ValueError("must not be . or .., nor have either between slashes: it goes into URLs")
    return value


#: An identifier that is safe in an HTTP header, a message's properties, the database and,
#: quoted, in a URL: visible ASCII, and no way to another path.
IDENTIFIER = r"^[\x21-\x7e]{1,128}$"
Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER), AfterValidator(_no_dot_segment)]
_IDENTIFIER = re.compile(IDENTIFIER)
#: Money in the currency's minor unit (cents), never a float: 12.50 is 1250.
Money = Annotated[int, Field(strict=True, ge=0, le=2**53)]


def identifier(value: Any) -> str | None:
    """The value if it is an identifier, else None: for records that are not checked yet."""
    is_one = isinstance(value, str) and _IDENTIFIER.fullmatch(value) and not has_dot_segment(value)
    return value if is_one else None


def field_errors(error: ValidationError) -> list[FieldError]:
    """A pydantic error as one entry a field, ``items[0].quantity`` style."""
    errors = [
        FieldError(_path(entry["loc"]), _problem(entry), _shown(entry)) for entry in error.errors()
    ]
    # Of a field and its parent only the field is worth a person's time.
    return [e for e in errors if not any(other.field.startswith(e.field + "[") for other in errors)]


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.lstrip(".") or "(record)"


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
        case "value_error":  # raised by a validator of ours, in words of ours
            return str(entry["ctx"]["error"])
        case _:
            message = str(entry["msg"])
            return message[0].lower() + message[1:]


def _shown(entry: Any) -> Any:
    # For a missing field pydantic shows the whole parent, which says nothing and may be personal.
    return ABSENT if entry["type"] == "missing" else entry["input"]


class Record(BaseModel):
    """A frozen value; fields it does not know are kept and passed on, not lost."""

    model_config = {"frozen": True, "extra": "allow", "str_max_length": 4096}
