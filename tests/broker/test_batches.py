"""Batches on a link that does what it is told: how many from the front are stored."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError

from pos_gateway.broker.link import AmqpLink, Confirms
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.domain.errors import BatchCutShort, BrokerUnavailable, PublishError, PublishRefused

REFUSED = PublishRefused("no")


class FakeLink:
    """Settles each message as ``fate`` says: None is stored, an error that; it may raise too."""

    def __init__(self, fate: Callable[[int], PublishError | None]) -> None:
        self.alive, self.lacks_exchange = True, False
        self.sent: list[str] = []
        self._fate = fate

    def send(self, batch: Confirms) -> None:
        for number, message in enumerate(batch.messages):
            error = self._fate(number)
            self.sent.append(message.message_id)
            batch.settle(number, error)

    def fail(self, error: BaseException) -> None:
        self.alive = False

    def close(self) -> None:
        self.alive = False


def messages(count: int = 5) -> list[Message]:
    return [Message("order-events", "order.accepted", b"{}", str(n)) for n in range(count)]


def published(
    link: FakeLink, batch: Sequence[Message], timeout: float = 60.0
) -> tuple[int, list[PublishError], Publisher]:
    publisher = Publisher("amqp://127.0.0.1:1//")
    publisher._link = link
    troubles: list[PublishError] = []
    stored = publisher.publish_batch(batch, on_trouble=troubles.append, timeout=timeout)
    return stored, troubles, publisher


def test_a_batch_is_sent_in_its_order_and_counted() -> None:
    link = FakeLink(lambda _: None)
    stored, troubles, _ = published(link, messages())
    assert (stored, troubles, link.sent) == (5, [], ["0", "1", "2", "3", "4"])


def test_an_empty_batch_is_stored() -> None:
    assert published(FakeLink(lambda _: None), [])[0] == 0


def test_messages_that_are_stored_behind_a_refused_one_do_not_count() -> None:
    class Slow(FakeLink):
        def send(self, batch: Confirms) -> None:
            for number in (4, 3, 1, 0):
                batch.settle(number)
            batch.settle(2, REFUSED)

    stored, troubles, publisher = published(Slow(lambda _: None), messages())
    assert (stored, [str(each) for each in troubles]) == (2, ["no"])
    assert publisher._link is None  # the next batch declares its queues


def test_a_link_that_is_lost_is_told_with_how_many_are_stored() -> None:
    lost = BrokerUnavailable("lost")
    with pytest.raises(BatchCutShort, match="lost") as caught:
        published(FakeLink(lambda n: lost if n == 3 else None), messages())
    assert caught.value.confirmed == 3


def test_a_link_that_cannot_be_written_to_is_given_up() -> None:
    def fate(n: int) -> None:
        if n == 1:
            raise ConnectionResetError("by peer")

    link = FakeLink(fate)
    with pytest.raises(BatchCutShort, match="by peer") as caught:
        published(link, messages())
    assert (caught.value.confirmed, link.alive, link.sent) == (1, False, ["0"])


def test_a_mistake_in_a_batch_ends_its_link() -> None:
    def fate(n: int) -> None:
        raise KeyError(n)

    link = FakeLink(fate)
    with pytest.raises(KeyError):
        published(link, messages())
    assert not link.alive


def test_nothing_is_sent_on_a_channel_that_the_broker_has_closed() -> None:
    closed: Any = SimpleNamespace(blocked=None, _channel=SimpleNamespace(channel_id=None))
    with pytest.raises(RecoverableConnectionError):
        AmqpLink.send(closed, Confirms(messages(1)))


def test_a_confirm_that_does_not_come_ends_the_wait() -> None:
    class Silent(FakeLink):
        def send(self, batch: Confirms) -> None:
            for number in (0, 1, 3):
                batch.settle(number)

    with pytest.raises(BatchCutShort, match="no confirm came in time") as caught:
        published(Silent(lambda _: None), messages(), timeout=0.0)
    assert caught.value.confirmed == 2


def test_a_broker_that_is_not_there_has_stored_none() -> None:
    publisher = Publisher("amqp://127.0.0.1:1//")
    with pytest.raises(BatchCutShort) as caught:
        publisher.publish_batch(messages(), on_trouble=lambda _: None)
    assert caught.value.confirmed == 0


def test_after_a_refusal_the_next_message_has_another_connection() -> None:
    """RabbitMQ 3.10 may refuse all that follows on that one, whichever node leads the queue by then."""
    refusing, replaced = FakeLink(lambda _: REFUSED), FakeLink(lambda _: None)
    publisher = Publisher("amqp://127.0.0.1:1//")
    publisher._link = refusing
    [message] = messages(1)
    with pytest.raises(PublishRefused):
        publisher.publish(message)
    assert not refusing.alive
    publisher._link = replaced
    publisher.publish(message)
    assert replaced.alive


def test_a_refusal_that_comes_late_leaves_the_connection_that_was_made_meanwhile() -> None:
    publisher = Publisher("amqp://127.0.0.1:1//")
    replaced = FakeLink(lambda _: None)

    def refuse(_: int) -> PublishError:
        publisher._link = replaced  # by another caller, who was refused before
        return REFUSED

    publisher._link = FakeLink(refuse)
    [message] = messages(1)
    with pytest.raises(PublishRefused):
        publisher.publish(message)
    assert publisher._link is replaced
    assert replaced.alive


def test_only_the_first_reply_to_a_message_counts() -> None:
    """The broker confirms it, and the connection is lost before all others are settled."""
    heard: list[tuple[str, PublishError | None]] = []
    called = Confirms(messages(2), lambda message, error: heard.append((message.message_id, error)))
    awaited = Confirms(messages(2))
    for batch in (called, awaited):
        batch.settle(0)
        assert not batch.wait(0)
        batch.settle(1)
        batch.fail(BrokerUnavailable("lost"))
        assert (batch.errors, batch.stored) == ({}, 2)
    assert heard == [("0", None), ("1", None)]
    assert awaited.wait(0) and not awaited.wait(0)
