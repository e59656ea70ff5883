"""Viewers of the operations page: logged in, and reading the live parts of its first view."""

import re
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import requests

_CSRF = re.compile(r'name="csrf" value="([^"]*)"')
_LIVE = re.compile(r'data-live="([^"]*)"')
#: Seconds without which a server does not answer.
_PATIENCE = 60.0


@contextmanager
def logged_in(url: str, token: str) -> Iterator[requests.Session]:
    """A browser's session at the server of this origin."""
    with requests.Session() as session:
        session.trust_env = False
        session.headers["accept"] = "text/html"
        csrf = _CSRF.search(session.get(f"{url}/login", timeout=_PATIENCE).text)
        form = {"token": token, "csrf": csrf[1] if csrf else ""}
        reply = session.post(
            f"{url}/login", form, headers={"origin": url}, allow_redirects=False, timeout=_PATIENCE
        )
        assert reply.status_code == 303, reply.text
        yield session


@contextmanager
def viewers(url: str, session: requests.Session, count: int) -> Iterator[list[int]]:
    """A number of viewers of the first view, each with a connection; those that were cut off.

    What the server sends is read.

    Raises:
        RuntimeError: at the end, if one of them was not served all the time.
    """
    live = _LIVE.search(session.get(f"{url}/", timeout=_PATIENCE).text)
    assert live is not None
    request = _request(url, session, live[1].replace("&amp;", "&"))
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(count):
            connection = stack.enter_context(_opened(url, request))
            selector.register(connection, selectors.EVENT_READ)
        waking, ending = map(stack.enter_context, socket.socketpair())
        selector.register(waking, selectors.EVENT_READ)
        gone: list[int] = []
        reader = threading.Thread(target=_read, args=(selector, waking, gone))
        reader.start()
        try:
            yield gone
        finally:
            ending.send(b"x")
            reader.join()
    if gone:
        raise RuntimeError(f"the server ended the streams of {len(gone)} of {count} viewers")


def _request(url: str, session: requests.Session, path: str) -> bytes:
    cookies = "; ".join(f"{each.name}={each.value}" for each in session.cookies)
    host = urlsplit(url).netloc
    return f"GET {path} HTTP/1.1\r\nhost: {host}\r\ncookie: {cookies}\r\n\r\n".encode()


def _opened(url: str, request: bytes) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), _PATIENCE)
    connection.sendall(request)
    begun = connection.recv(65536)
    assert begun.startswith(b"HTTP/1.1 200 "), begun
    return connection


def _read(selector: selectors.BaseSelector, waking: socket.socket, gone: list[int]) -> None:
    while True:
        for key, _ in selector.select():
            if key.fileobj is waking:
                return
            assert isinstance(key.fileobj, socket.socket)
            if not key.fileobj.recv(65536):
                gone.append(key.fd)
                selector.unregister(key.fileobj)
