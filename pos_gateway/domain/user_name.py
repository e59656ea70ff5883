"""Names of people whom a proxy has logged in."""

#: Maximum characters: as many as the audit takes.
LONGEST = 128
#: Stands for every name, in a list that may have it.
EVERYONE = "*"


def is_user_name(text: str) -> bool:
    """Whether it can be one: printable, and neither a list nor a token.

    A proxy that gets a header twice may have joined the values with a comma.
    """
    is_long = not 1 <= len(text) <= LONGEST
    return not is_long and text.isprintable() and text == text.strip() and not _is_other(text)


def user_names(text: str) -> frozenset[str]:
    """Names from ``kim@example.com, sam``. Raises ValueError naming an invalid one."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name == EVERYONE or not is_user_name(name):
            raise ValueError(f"{name[:40]!r} is no user's name: {LONGEST} printable characters")
    return frozenset(names)


def user_names_or_everyone(text: str) -> frozenset[str]:
    """The same, or ``*`` for every user."""
    return frozenset({EVERYONE}) if text.strip() == EVERYONE else user_names(text)


def _is_other(text: str) -> bool:
    return "," in text or text == EVERYONE or text.startswith("pgw_")
