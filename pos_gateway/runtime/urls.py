"""Masks credentials in URLs for display; no other module does."""

import re
from urllib.parse import unquote, urlsplit

#: Replaces a password.
MASK = "********"

_SCHEME = r"[A-Za-z][\w+.-]*://"
#: The separator of broker URLs: ``;``, which a password may contain, too.
_BETWEEN = re.compile(r";(?=(?:amqps?|memory)://)")
#: A user name and a password, whose ``@`` and ``/`` may not be encoded.
_CREDENTIALS = re.compile(rf"^({_SCHEME}[^:]*|(?!{_SCHEME})[^:]*):.*@", re.DOTALL)
_PARAMETER = re.compile(r"([?&;#])([^=&;#?]+)=([^&]*)")
_SECRET = re.compile(r"pass|pwd|secret|token|key|credential|auth", re.IGNORECASE)


def mask_url(urls: str) -> str:
    """URLs (``;`` between them) without passwords: up to the last ``@``, and in the query."""
    return ";".join(map(_masked, _BETWEEN.split(urls)))


def require_usable(urls: str) -> None:
    """Raises ValueError, quoting nothing, for a URL without a readable host and port."""
    for url in urls.split(";"):
        try:
            _ = urlsplit(url if "://" in url else f"//{url}").port
        except ValueError:
            raise ValueError(
                "has no readable host and port; in a password / is written %2F, ? %3F, # %23, @ %40"
            ) from None


def _masked(url: str) -> str:
    url = _CREDENTIALS.sub(lambda found: f"{found[1]}:{MASK}@", url)
    return _PARAMETER.sub(_masked_parameter, url)


def _masked_parameter(found: re.Match[str]) -> str:
    before, name, _ = found.groups()
    return f"{before}{name}={MASK}" if _SECRET.search(unquote(name)) else found[0]
