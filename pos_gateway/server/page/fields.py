"""What a query or a form says: text by name, where a name may come several times."""

from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl

from pos_gateway.server.problems import Problem

#: Maximum fields of a form or a query.
MAX_FIELDS = 2000


class Fields(Mapping[str, str]):
    """The fields. A name's value is its last one; ``all`` has every one."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    @classmethod
    def parse(cls, text: bytes) -> "Fields":
        """Raises Problem 422."""
        try:
            pairs = parse_qsl(
                text.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS
            )
        except ValueError:
            raise Problem(
                422, "invalid_request", f"there are more than {MAX_FIELDS} fields"
            ) from None
        for name, value in pairs:
            if "\0" in name or "\0" in value:  # PostgreSQL's text cannot have it
                raise Problem(422, "invalid_request", "a field has a NUL character: remove it")
        return cls(pairs)

    def all(self, name: str) -> list[str]:
        """Every value of this name, in order."""
        return list(self._values.get(name, ()))

    def __getitem__(self, name: str) -> str:
        return self._values[name][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


NONE = Fields([])
