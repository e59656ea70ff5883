"""The client's address and scheme, behind proxies that are trusted, and those that are not."""

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from pos_gateway.server.serving import _config, listening
from pos_gateway.settings import setting
from tests.server.inside import Inside, inside

CLIENT, SPOOFED, PROXY = "198.51.100.9", "203.0.113.66", "10.4.7.7"
PROXIES = "10.4.0.0/16, 192.0.2.1, fd00:4::/64"


@contextmanager
def behind(database_url: str, proxies: str) -> Iterator[Inside]:
    """The application as uvicorn has it; what it learns of a request is in ``seen``."""
    with inside(database_url, trusted_proxies=proxies) as server:
        app = server.site.app

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            server.seen = (scope["client"][0], scope["scheme"])  # type: ignore[attr-defined]
            await app(scope, receive, send)

        server.site.app = noting  # type: ignore[assignment]
        config = _config(server.site, None, None)
        config.load()
        server.site.app = config.loaded_app
        yield server


def seen(server: Inside, peer: str, headers: Mapping[str, str]) -> Any:
    assert asyncio.run(server.ask("GET", "/healthz", headers=headers, client=peer)).status == 200
    return server.seen  # type: ignore[attr-defined]


@pytest.mark.parametrize("proxies", ["", "192.0.2.1", "10.5.0.0/16"])
def test_other_proxies_are_not_believed(database_url: str, proxies: str) -> None:
    """Nor is uvicorn's default, which is this machine."""
    headers = {"x-forwarded-for": SPOOFED, "x-forwarded-proto": "https", "forwarded": "for=1.1.1.1"}
    with behind(database_url, proxies) as server:
        for peer in (PROXY, "127.0.0.1", "::1", SPOOFED):
            assert seen(server, peer, headers) == (peer, "http")


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        (PROXY, CLIENT, CLIENT),
        ("192.0.2.1", CLIENT, CLIENT),
        ("fd00:4::9", "2001:db8::5", "2001:db8::5"),
        (PROXY, f"{CLIENT}:4711", CLIENT),
        (PROXY, '"[2001:db8::5]:443"', "2001:db8::5"),
        ("fd00:4::9", f'{CLIENT}, "[fd00:4::7]:443"', CLIENT),
        (f"::ffff:{PROXY}", CLIENT, CLIENT),
        (PROXY, f"{SPOOFED}, {CLIENT}", CLIENT),
        (PROXY, f"{SPOOFED}, {CLIENT}, 10.4.1.1", CLIENT),
        (PROXY, f"{SPOOFED},10.4.9.9 , {CLIENT},192.0.2.1", CLIENT),
        (PROXY, f"10.4.1.1, {CLIENT}", CLIENT),
        (PROXY, f"{CLIENT}, 10.5.1.1", "10.5.1.1"),
        (PROXY, "", PROXY),
        (CLIENT, SPOOFED, CLIENT),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(
    database_url: str, peer: str, forwarded: str, client: str
) -> None:
    headers = {"x-forwarded-for": forwarded, "x-forwarded-proto": "https"}
    with behind(database_url, PROXIES) as server:
        assert seen(server, peer, headers) == (client, "http" if peer == CLIENT else "https")


@pytest.mark.parametrize("garbage", ["x", "é", "1.2.3.4.5", "[::1", "a" * 5000, "unknown", "\"'\\"])
def test_what_is_no_address_is_taken_for_none_of_a_proxy(database_url: str, garbage: str) -> None:
    """It is what the last proxy has said, and is cut where it is logged."""
    headers = {"x-forwarded-for": f"{CLIENT}, {garbage}", "x-forwarded-proto": garbage}
    with behind(database_url, PROXIES) as server:
        found, scheme = seen(server, PROXY, headers)
        assert (found.encode("latin-1"), scheme) == (garbage.replace('"', "").encode(), "http")
        token = server.token()
        path = "/v1/merchants/m1/orders/o1/cancel"
        reply = asyncio.run(server.ask("POST", path, token, headers=headers, client=PROXY))
        assert reply.status == 202
        server.site.audit.write()
        [line] = server.audited()
        assert line[-1] == f"over HTTP, from {found[:45]}"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")
def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    """As at the metrics port."""
    with listening("::", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 10).close()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_load_balancers_may_ask_with_head(database_url: str, path: str) -> None:
    with inside(database_url) as server:
        assert asyncio.run(server.ask("HEAD", path)).status in (200, 503)


@pytest.mark.parametrize("wrong", ["proxy", "10.4.0.1/16", "10.0.0.0/40", "*", "10.0.0.1;10.0.0.2"])
def test_a_setting_that_is_no_network_is_refused(wrong: str) -> None:
    with pytest.raises(Exception, match="POS_GATEWAY_TRUSTED_PROXIES"):
        setting("trusted_proxies", wrong)
