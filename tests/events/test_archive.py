"""Past events, read by position: cut by number, and by bytes before they are read."""

import pytest
from sqlalchemy import Engine, insert

from pos_gateway.database.schema import events, orders, pipeline
from pos_gateway.domain.outcome import Kind
from pos_gateway.events import archive as archive_module
from pos_gateway.events import archive as subject
from pos_gateway.events.archive import Archive
from pos_gateway.events.event import dehydrated
from pos_gateway.events.hydration import Hydration
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import Vault
from tests.events.lab import Events

COUNT, LONG = 12, 100_000


@pytest.fixture(params=["payload", "body", "order", "reason"])
def archive(
    engine: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Archive:
    """A dozen published events of a hundred kilobytes each, wherever those are kept."""
    monkeypatch.setattr(subject, "_CHUNK", 3)
    text = '{"type":"order.failed","x":"' + "x" * LONG + '"}'
    common = {"type": "failed", "merchant_id": "m-1", "occurred_at": 1.0, "attempts": 1}
    rows = [
        {"event_id": f"e-{n}", "position": n, "order_id": f"o-{n}", **common}
        for n in range(1, COUNT + 1)
    ]
    with engine.begin() as connection:
        connection.execute(
            insert(pipeline).values(id=1, epoch=1, assigned=COUNT, published=COUNT - 1)
        )
        for row in rows:
            match request.param:
                case "payload" | "body" as column:
                    row[column] = text
                case "reason":
                    row |= {"reason_code": "refused", "reason_message": "x" * LONG}
                case "order":
                    ids = {"merchant_id": "m-1", "order_id": row["order_id"], "payload": text}
                    state = {"action": "submit", "state": "failed", "epoch": 1, "attempts": 1}
                    state |= {"ticket": 1, "deaths": 0, "pending": False, "reopened": 0}
                    times = {"created_at": 1.0, "updated_at": 1.0}
                    connection.execute(insert(orders).values(ids | state | times))
            connection.execute(insert(events).values(row))
    return Archive(engine, Hydration(Payloads(Vault())))


@pytest.mark.parametrize(
    ("after", "most", "size", "last"),
    [
        (0, 1000, 100 * LONG, COUNT - 1),
        (0, 4, 100 * LONG, 4),
        (2, 3, 100 * LONG, 5),
        (0, 1000, 1, 1),
        (0, 1000, LONG // 2, 1),
        (0, 1000, 5 * LONG // 2, 2),
        (4, 1000, 9 * LONG // 2, 8),
        (COUNT - 1, 1000, 100 * LONG, COUNT - 1),
    ],
)
def test_events_are_cut_by_number_and_by_bytes(
    archive: Archive, after: int, most: int, size: int, last: int
) -> None:
    found = archive.after(after, most, size)
    assert [position for position, _ in found] == list(range(after + 1, last + 1))


def test_a_replay_reads_as_many_bytes_at_once_as_a_batch_has(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "BATCH_BYTES", 5 * LONG // 2)
    batches = [[position for position, _ in batch] for batch in archive.read(2, 6, 500)]
    assert batches == [[2, 3], [4, 5], [6]]


def test_an_event_with_a_position_is_found_by_its_id_once_it_is_published(engine: Engine) -> None:
    """Repeated before its turn, it would be published before those with lower positions."""
    written = Events(engine)
    for position in (1, 2, None):
        written.write(position=position)
    with engine.begin() as connection:
        connection.execute(insert(pipeline).values(id=1, epoch=1, assigned=2, published=1))
    archive = Archive(engine, Hydration(Payloads(Vault())))
    kept, messages = archive.by_ids([*written.ids, "pruned"])
    assert kept == {"e0", "e1", "e2"}
    assert [message.message_id for message in messages] == ["e0"]


def test_the_events_of_each_generation_of_an_order_are_found(engine: Engine) -> None:
    written, key = Events(engine), Key("m", "o1")
    kinds = (Kind.FAILED, Kind.EXPIRED, Kind.ACCEPTED)
    for reopened, kind in enumerate(kinds):
        event_id = dehydrated(key, kind, reopened=reopened).id
        written.write_one("o1", event_id=event_id, type=str(kind), position=reopened + 1)
    with engine.begin() as connection:
        connection.execute(insert(pipeline).values(id=1, epoch=1, assigned=3, published=3))
    found = Archive(engine, Hydration(Payloads(Vault()))).of_order(key, 2, 0)
    assert [message.routing_key for message in found] == [f"order.{kind}" for kind in kinds]
