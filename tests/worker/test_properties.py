"""Properties as they stand in a frame, read as the worker has the AMQP library read them."""

import struct
from typing import Any

import pytest
from amqp import serialization

from pos_gateway.worker.properties import tolerate_bad_properties


def read(table: bytes) -> dict[str, Any]:
    """The headers of a message that has this table of them."""
    tolerate_bad_properties()
    frame = struct.pack(">HI", 0x2000, len(table)) + table
    properties, _ = serialization.PROPERTY_CLASSES[60](frame, 0)
    headers: dict[str, Any] = properties["application_headers"]
    return headers


@pytest.mark.parametrize("seconds", [2**40, 2**55, 2**62, 2**64 - 1])
def test_a_time_that_no_calendar_has_is_not_taken_for_a_lost_connection(seconds: int) -> None:
    assert read(b"\4time" + b"T" + struct.pack(">Q", seconds)) == {}


def test_a_table_that_ends_too_early_is_none() -> None:
    assert read(b"\4long" + b"S\0\0\0") == {}


def test_kombu_does_not_see_that_a_body_is_compressed() -> None:
    headers = read(b"\x0bcompression" + b"S\0\0\0\4gzip")
    assert headers == {"x-compression": "gzip"}
