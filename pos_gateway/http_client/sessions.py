"""Connections to the server: where it is, the token, and and the sessions that calls share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from pydantic import SecretStr

from pos_gateway.domain.errors import FieldError, InvalidSettings
from pos_gateway.runtime.urls import mask_url
from pos_gateway.settings import PREFIX, setting

#: Visible ASCII: anything else would not go into a header, or end it.
_VISIBLE = range(0x21, 0x7F)


class BearerAuth:
    """Sets the header as the last thing, so that no error or local variable has the token.

    With an ``auth``, requests takes none from ``~/.netrc``, which would replace the header.
    """

    def __init__(self, token: SecretStr) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        return request


class SessionPool:
    """The sessions that no call uses at present. Safe from threads: a list's methods are."""

    def __init__(
        self, given: requests.Session | None, make: Callable[[], requests.Session]
    ) -> None:
        self._given = given
        self._make = make
        self._idle: list[requests.Session] = []
        self._process = os.getpid()
        self.is_closed = False

    @contextmanager
    def one(self) -> Iterator[requests.Session]:
        """A session for one call."""
        if self._given is not None:
            yield self._given
            return
        session = self._take()
        try:
            yield session
        finally:
            self._idle.append(session)
            if self.is_closed:
                self.close()

    def _take(self) -> requests.Session:
        if self._process != os.getpid():  # the connections are the parent's, too
            self._idle, self._process = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def close(self) -> None:
        """Close them, and each other one when its call ends."""
        self.is_closed = True
        try:
            while True:
                self._idle.pop().close()
        except IndexError:
            return


def server_url(given: str | None) -> str:
    url: str = _given("http_url", given).rstrip("/")
    parts = urlsplit(url)
    problem = None
    if not parts.hostname:
        problem = "has no host; it is like https://orders.example.com"
    elif parts.query or parts.fragment:
        problem = "has a query or a fragment; leave out what comes from ? or # on"
    elif parts.username is not None:
        problem = f"has a user name; leave it out: the server takes a token ({PREFIX}TOKEN) only"
    if problem:
        raise InvalidSettings([FieldError(PREFIX + "HTTP_URL", problem, mask_url(url))])
    return url


def token_of(given: str | None) -> SecretStr:
    text: str = _given("token", given).get_secret_value().strip()
    if not text or any(ord(each) not in _VISIBLE for each in text):
        problem = (
            "is no token: it is empty, or has a character that no token has (a blank, an ellipsis); "
            "pos-gateway tokens create makes one"
        )
        raise InvalidSettings([FieldError(PREFIX + "TOKEN", problem)])
    return SecretStr(text)


def _given(name: str, value: str | None) -> Any:
    found = setting(name, value)
    if found is None:
        problem = "is not set, and no value was given"
        raise InvalidSettings([FieldError(PREFIX + name.upper(), problem)])
    return found


def verification(verify: bool | str | Path) -> bool | str | None:
    if isinstance(verify, bool):
        # None: as the session and the environment have it, and they check it by default.
        return None if verify else False
    if not Path(verify).exists():
        problem = "there is no such file; give the PEM file of the certificate's authority"
        raise InvalidSettings([FieldError("verify", problem, str(verify))])
    return str(verify)
