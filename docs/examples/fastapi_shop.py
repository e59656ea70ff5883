"""A shop on FastAPI and SQLAlchemy: a purchase and its order to the kitchen are one transaction.

    pip install pos-gateway fastapi uvicorn SQLAlchemy "psycopg[binary]"     # psycopg: not with SQLite
    export DATABASE_URL=sqlite:///shop.db POS_GATEWAY_BROKER_URL=amqp://...
    uvicorn fastapi_shop:app

    curl -H "Content-Type: application/json" --data-binary @order.json localhost:8000/purchases

With several processes (``--workers``) each has a relay; they share the work.
"""

import os
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Header
from fastapi.responses import JSONResponse
from sqlalchemy import BigInteger, String, create_engine, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pos_gateway.client import OrderClient, outbox
from pos_gateway.domain.errors import InvalidOrder

engine = create_engine(os.environ["DATABASE_URL"])


class Base(DeclarativeBase):
    """The shop's tables."""


class Purchase(Base):
    """What a customer has paid for."""

    __tablename__ = "purchases"
    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)


def create_tables() -> None:
    """Purchases and the outbox, if they are not there; Alembic's part in a project of yours."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        if not inspect(connection).has_table(outbox.TABLE):
            for statement in outbox.ddl(engine.dialect.name):
                connection.exec_driver_sql(statement)


@asynccontextmanager
async def lifespan(_app: FastAPI):
    """A relay as long as the process serves."""
    create_tables()
    client = OrderClient()
    relay = outbox.Relay(client, engine.raw_connection).start()
    app.state.relay = relay
    yield
    relay.stop()
    client.close()


app = FastAPI(lifespan=lifespan)


@app.post("/purchases", status_code=201)
def purchase(order: dict[str, Any], x_fail: str = Header("")):
    """Store the purchase, and with it the order: both, or neither."""
    try:
        with Session(engine) as session, session.begin():
            session.add(Purchase(id=order["order_id"], total=order["total"]))
            outbox.add(session, order)
            if x_fail:  # what may happen in any request
                raise RuntimeError("the request failed")
    except InvalidOrder as error:
        fields = [{"field": each.field, "problem": each.problem} for each in error.errors]
        return JSONResponse({"errors": fields}, status_code=422)
    app.state.relay.wake()  # where the database does not notify
    return {"id": order["order_id"]}


@app.get("/lag")
def lag():
    """How far orders are behind purchases: for a probe, or a gauge."""
    return app.state.relay.lag()._asdict()
