"""Authentication in a merchant's record, and that its secrets are not shown."""

import json
import ssl
from typing import Any

import pytest
import trustme

from pos_gateway.domain.credentials import NONE, NoAuth, OAuth2
from pos_gateway.domain.errors import InvalidMerchant
from pos_gateway.domain.merchant import Merchant

SECRET = "s3cr3t-marker"
GOOD: dict[str, dict[str, Any]] = {
    "api_key": {"type": "api_key", "header": "X-Key", "key": SECRET},
    "basic": {"type": "basic", "username": "us", "password": SECRET},
    "bearer": {"type": "bearer", "token": SECRET},
    "hmac": {"type": "hmac", "secret": SECRET},
    "oauth2": {
        "type": "oauth2",
        "token_url": "https://auth.example/token",
        "client_id": "us",
        "client_secret": SECRET,
    },
    "oauth2_grant": {
        "type": "oauth2_grant",
        "token_url": "https://auth.example/token",
        "client_id": "us",
        "client_secret": SECRET,
        "refresh_token": SECRET,
        "access_token": SECRET,
        "expires_at": "2026-12-31T12:00:00Z",
        "refresh_expires_at": 1798718400,
    },
}


def merchant(auth: Any) -> Merchant:
    return Merchant.parse({"id": "m", "base_url": "https://pos.example", "auth": auth})


@pytest.mark.parametrize("auth", GOOD.values(), ids=GOOD)
def test_no_secret_is_shown_and_all_can_be_revealed(auth: dict[str, Any]) -> None:
    parsed = merchant(auth)
    shown = repr(parsed) + str(parsed) + json.dumps(parsed.model_dump(mode="json"))
    shown += repr(parsed.auth) + parsed.model_dump_json() + parsed.auth.fingerprint
    assert SECRET not in shown
    revealed = parsed.auth.reveal()
    assert SECRET in json.dumps(revealed)
    assert merchant(revealed).auth == parsed.auth


@pytest.mark.parametrize("auth", [{}, {"type": "none"}, None])
def test_a_pos_without_authentication_needs_no_credentials(auth: Any) -> None:
    record = {"id": "m", "base_url": "https://pos.example"}
    parsed = Merchant.parse(record if auth is None else {**record, "auth": auth})
    assert isinstance(parsed.auth, NoAuth)
    assert parsed.auth.fingerprint == NONE.fingerprint


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "telepathy"},
        {"key": SECRET},
        {"type": "api_key"},
        {"type": "api_key", "key": f"{SECRET}\r\nX-Other: 1"},
        {"type": "api_key", "key": ""},
        {"type": "api_key", "key": "**********"},
        {"type": "api_key", "key": SECRET, "header": "X Key"},
        {"type": "api_key", "key": SECRET, "header": "Transfer-Encoding"},
        {"type": "api_key", "key": SECRET, "kye": SECRET},
        {"type": "basic", "username": "a:b", "password": SECRET},
        {"type": "oauth2", "token_url": "ftp://x", "client_id": "a", "client_secret": SECRET},
        {"type": "oauth2_grant", "token_url": "https://x", "client_id": "a"},
        {**GOOD["oauth2_grant"], "access_token": ""},
        {**GOOD["oauth2_grant"], "expires_at": "2026-12-31T12:00:00"},
        {**GOOD["oauth2_grant"], "expires_at": -1},
        {**GOOD["oauth2_grant"], "expires_at": 1e20},
        {"type": "bearer", "token": 7},
        {"type": "none", "tls": {"certificate": "nonsense", "key": SECRET}},
        {"type": "none", "tls": {"certificate": "alone"}},
        {"type": "none", "tls": {"authority": "nonsense"}},
        SECRET,
    ],
)
def test_an_error_names_the_field_and_no_secret(auth: Any) -> None:
    with pytest.raises(InvalidMerchant) as caught:
        merchant(auth)
    assert caught.value.field.startswith("auth")
    assert SECRET not in str(caught.value)


def test_a_key_of_another_certificate_is_refused() -> None:
    ca = trustme.CA()
    one, other = ca.issue_cert("a.example"), ca.issue_cert("b.example")
    chain, key = one.cert_chain_pems[0].bytes().decode(), one.private_key_pem.bytes().decode()
    tls = {"certificate": chain, "key": key, "authority": ca.cert_pem.bytes().decode()}
    assert merchant({"type": "none", "tls": tls}).auth.tls is not None
    tls["key"] = other.private_key_pem.bytes().decode()
    with pytest.raises(InvalidMerchant, match=r"auth\.none\.tls|auth"):
        merchant({"type": "none", "tls": tls})


def test_different_credentials_have_different_fingerprints() -> None:
    one, other = (
        merchant(GOOD["oauth2"]).auth,
        merchant({**GOOD["oauth2"], "client_secret": "x"}).auth,
    )
    assert isinstance(one, OAuth2)
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == merchant(GOOD["oauth2"]).auth.fingerprint


def test_a_certificate_is_checked_without_loading_the_systems_authorities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that starts reads hundreds of records in one load: 50 ms each on its loop."""
    loaded: list[str] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_default_certs", lambda *_: loaded.append("the system's")
    )
    ours = trustme.CA().issue_cert("gateway.example")
    chain = "".join(each.bytes().decode() for each in ours.cert_chain_pems)
    tls = {"certificate": chain, "key": ours.private_key_pem.bytes().decode()}
    assert merchant({"type": "none", "tls": tls}).auth.tls is not None
    assert loaded == []
