"""A server's application in the test's process, and a broker that does as the test says."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import select

from pos_gateway.database.schema import audit
from pos_gateway.server.posted import Posted, PostResult
from pos_gateway.server.site import Site
from pos_gateway.settings import Settings
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from tests.server import compiled
from tests.server.lab import migrated

compiled.share()

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}


class Reply(NamedTuple):
    """A reply; what it says is its JSON."""

    status: int
    headers: Mapping[str, str]
    says: Any
    #: How often the application asked for a part of the body.
    reads: int


class Inside:
    """A site that was not started: nothing but its requests runs."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.store = TokenStore(site.database)
        self.published: list[Posted] = []
        #: What the broker does with a message.
        self.result: Callable[[Posted], PostResult] = lambda _: PostResult.STORED
        site.intake.post = self._post  # type: ignore[method-assign]
        site._splits.split = lambda: None  # type: ignore[method-assign]

    def token(self, role: Role = Role.BACKEND, rate: int | None = None, name: str = "shop") -> str:
        """A new token, which the server knows."""
        token = self.store.create(name, role, rate, operator="test")
        self.site.tokens.refresh()
        return token

    async def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        client: str = "192.0.2.7",
        scheme: str = "http",
        peer: str | None = None,
        also: Sequence[tuple[str, str]] = (),
    ) -> Reply:
        """The reply to a request. ``also``: headers after the others, of the same names or not."""
        sent: list[Any] = []
        reads = 0
        given = {**(headers or {})}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        if body:
            given["content-length"] = str(len(body))
        path, _, query = path.partition("?")

        async def receive() -> Any:
            nonlocal reads
            reads += 1
            if reads > 1:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(n.encode(), value.encode()) for n, value in (*given.items(), *also)],
            "client": (client, 5000),
            "peer": (peer or client, 5000),
            "scheme": scheme,
        }
        await self.site.app(scope, receive, send)
        content = b"".join(each.get("body", b"") for each in sent[1:])
        says = json.loads(content) if content.startswith((b"{", b"[")) else content
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, says, reads)

    def audited(self) -> list[tuple[str, str, str, str, str]]:
        """What the audit's table has of requests."""
        with self.site.database.connect() as connection:
            rows = connection.execute(select(audit).order_by(audit.c.id)).all()
        return [
            (row.operator, row.what, row.merchant_id, row.order_id, row.details)
            for row in rows
            if not row.what.startswith("tokens.")
        ]

    def why(self, what: str) -> list[tuple[str, str | None, str]]:
        """Operator, reason and details of the audit's lines of this."""
        columns = audit.c.operator, audit.c.reason, audit.c.details
        with self.site.database.connect() as connection:
            query = select(*columns).where(audit.c.what == what).order_by(audit.c.id)
            return [(row[0], row[1], row[2]) for row in connection.execute(query)]

    async def _post(self, posted: Sequence[Posted]) -> None:
        for each in posted:
            each.result = self.result(each)
            self.published.append(each)


@contextmanager
def inside(database_url: str, **settings: Any) -> Iterator[Inside]:
    """An application on this database, with the schema."""
    migrated(database_url)
    site = Site(Settings(**{"broker_url": "memory://", "database_url": database_url, **settings}))
    try:
        yield Inside(site)
    finally:
        site.reading.close()
        site._masking.close()
        site.database.dispose()
