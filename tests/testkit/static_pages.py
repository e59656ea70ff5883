"""Pages that stand in a test, served on loopback."""

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self

#: As the operations page has it.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
)


class StaticPages:
    """Serves HTML by path. ``headers`` go with every reply."""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self._pages: dict[str, tuple[str, str]] = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.reply(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, path: str, text: str, kind: str = "text/html; charset=utf-8") -> str:
        """Serve this text there; returns the whole URL."""
        self._pages[path] = text, kind
        return self.url + path

    def show(self, body: str, path: str = "/", head: str = "") -> str:
        """Serve a sound document with this body; returns its URL."""
        return self.put(path, document(body, head))

    def reply(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a GET."""
        found = self._pages.get(handler.path)
        if handler.path == "/favicon.ico":  # a browser asks for it by itself
            found = "", "image/x-icon"
        text, kind = found or ("", "text/plain")
        content = text.encode("utf-8", "surrogatepass")
        headers: Mapping[str, str] = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            **self.headers,
        }
        handler.send_response(404 if found is None else 200)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def document(body: str, head: str = "") -> str:
    """A document that breaks no rule by itself."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Page</title>'
        '<meta name="viewport" content="width=device-width">'
        f"{head}</head><body><main><h1>Page</h1>{body}</main></body></html>"
    )
