"""Label values that others choose, kept to so many: each is a series, and Prometheus pays for it."""

#: Of one that says nothing, and of all that come when there are enough.
NONE, OTHER = "none", "other"


class Names:
    """The first so many values keep their names; whatever comes after them is ``other``.

    Never forgets: a value that had a name keeps it. Safe from threads.

    Args:
        most: values that are named at most.
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
