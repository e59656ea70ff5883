"""A server with the story in its database, a broker of its own, and two operators: for a browser's tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine

from pos_gateway.database.engine import open_database
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.runtime.vault import Vault
from pos_gateway.server.page.links import link
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.page_story import Story, seed
from testkit.servers.rabbitmq import RabbitMQ
from tests.schema import make_tables
from tests.server.lab import serving


class StoryPlace(NamedTuple):
    """The server, its story, and the tokens of the operators Kim and Sam."""

    url: str
    kim: str
    sam: str
    story: Story
    engine: Engine
    broker_url: str

    def path(self, key: Key, act: str = "") -> str:
        """The URL of an order's page, or of one of its forms."""
        return self.url + link("/merchants/{}/orders/{}", key.merchant_id, key.order_id) + act

    def order(self, key: Key) -> State:
        """The order's state in the ledger."""
        found = OrderAdmin(self.engine, Payloads(Vault())).one(key)
        assert found is not None
        return found.state


@contextmanager
def story_place(rabbitmq: RabbitMQ, folder: Path) -> Iterator[StoryPlace]:
    """Serve the story while entered."""
    rabbitmq.start()
    broker_url = rabbitmq.add_vhost()
    database_url = f"sqlite:///{folder}/gateway.db"
    engine = open_database(database_url)
    make_tables(engine)
    story = seed(engine, broker_url, merchants=20, orders=400)
    store = TokenStore(engine)
    kim, sam = (store.create(name, Role.OPERATOR, operator="test") for name in ("kim", "sam"))
    with serving(broker_url, database_url, folder / "server.log") as server:
        yield StoryPlace(server.url, kim, sam, story, engine, broker_url)
    engine.dispose()
    rabbitmq.delete_vhost(broker_url)
