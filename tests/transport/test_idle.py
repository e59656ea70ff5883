"""A pool's container of idle connections."""

import queue

import pytest

from pos_gateway.transport.connect import HTTPPool
from pos_gateway.transport.idle import Idle


def test_the_last_used_connection_comes_first_and_idle_ones_are_bounded() -> None:
    idle = Idle(2)
    idle.put("a")
    idle.put("b")
    with pytest.raises(queue.Full):
        idle.put("c")
    assert idle.qsize() == 2
    assert [idle.get(), idle.get()] == ["b", "a"]
    with pytest.raises(queue.Empty):
        idle.get()


def test_a_pool_keeps_as_many_connections_as_its_merchant_may_have_and_closes_them() -> None:
    pool = HTTPPool("127.0.0.1", 9, maxsize=2, block=False, dial=None)
    connections = [pool._get_conn() for _ in range(3)]
    for connection in connections:
        pool._put_conn(connection)
    assert isinstance(pool.pool, Idle)
    assert [pool._get_conn(), pool._get_conn()] == connections[1::-1]
    assert pool._get_conn() not in connections
    pool.close()
    assert pool.pool is None
