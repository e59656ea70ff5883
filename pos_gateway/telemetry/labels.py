"""Limits externally chosen label values: each is a series, which costs Prometheus memory."""

#: The label of an empty value, and of values beyond the limit.
NONE, OTHER = "none", "other"


class Names:
    """The first ``most`` values are labels; any later value is ``other``.

    Never forgets: a value that is a label stays one. Safe from threads.

    Args:
        most: the limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: set[str] = set()

    def __call__(self, value: str | None) -> str:
        if value in self._named:
            return value
        if not value:
            return NONE
        if len(self._named) >= self._most:
            return OTHER
        self._named.add(value)
        return value
