"""Text from outside, made fit for a terminal."""


def printable(text: object) -> str:
    """The text in one line, with what a terminal would obey (escape sequences) written out."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
