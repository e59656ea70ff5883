"""A merchant's credentials. No value shows a secret when printed."""

import base64
import hashlib
import json
import ssl
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from pos_gateway.domain.record import Record
from pos_gateway.runtime import tls

#: The year 10000, in Unix time.
_END = 253_402_300_800.0
#: A header's value, without line ends, which would inject a header.
_Printable = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", max_length=4096)]
_HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]


#: Headers that frame a request; no credential may be in one of them.
_FRAMING = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"}
)


def _not_framing(name: str) -> str:
    if name.lower() in _FRAMING:
        raise ValueError("is not a header for a key")
    return name


def _one_line(value: Any) -> Any:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if isinstance(text, str) and not (text.isascii() and text.isprintable() and text.strip()):
        raise ValueError("must be one line of printable ASCII")
    if isinstance(text, str) and not text.strip("*"):
        raise ValueError("is masked; give the secret itself")
    return value


def unix_time(value: Any) -> float:
    """A moment as vendors write it: Unix time, or ISO 8601 with a zone. Raises ValueError."""
    moment = 0.0
    try:
        if not isinstance(value, str) or value.isdecimal():
            moment = float(value)
        elif (said := datetime.fromisoformat(value)).tzinfo is not None:
            moment = said.timestamp()
    except (TypeError, ValueError, OverflowError):
        pass
    if not 0 < moment < _END:
        raise ValueError("should be a time as 2026-12-31T12:00:00Z, or in Unix seconds")
    return moment


_Moment = Annotated[float, BeforeValidator(unix_time)]

#: A secret that goes into a header.
Secret = Annotated[SecretStr, BeforeValidator(_one_line), Field(max_length=4096)]


def _two_at_most(keys: SecretStr) -> SecretStr:
    if len(keys.get_secret_value().split()) > 2:
        raise ValueError("must be one key, or two with a blank between them")
    return keys


class Identity(Record):
    """Mutual TLS: PEM texts of our certificate with its chain, its key, and trusted authorities."""

    model_config = ConfigDict(extra="forbid")

    certificate: Annotated[str, Field(max_length=65536)] | None = None
    key: SecretStr | None = None
    authority: Annotated[str, Field(max_length=262144)] | None = Field(
        default=None, description="Certificate authorities to trust instead of the system's."
    )

    @property
    def chain(self) -> str | None:
        """Certificate and key, concatenated."""
        if self.certificate is None or self.key is None:
            return None
        return f"{self.certificate}\n{self.key.get_secret_value()}\n"

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        try:
            # Without an authority the certificate stands in for the system's authorities: loading those takes 50 ms.
            tls.context(authority=self.authority or self.certificate, chain=self.chain)
        except ssl.SSLError as error:
            raise ValueError(f"cannot be used: {error.reason or error}") from None
        return self


class Credentials(Record):
    """The fields that all kinds share."""

    model_config = ConfigDict(extra="forbid")

    tls: Identity | None = Field(default=None, description="Mutual TLS, whatever else is asked.")
    webhook_signature_key: Annotated[Secret, AfterValidator(_two_at_most)] | None = Field(
        default=None,
        description="With which the POS signs what it says by itself (callbacks). While it changes:"
        " both keys, with a blank between them.",
    )

    def reveal(self) -> dict[str, Any]:
        """With the secrets in clear: for the vault only."""
        plain: dict[str, Any] = _in_clear(self.model_dump(exclude_none=True))
        return plain

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """The secrets that the POS has too, and may repeat."""
        values = (getattr(self, name) for name in type(self).model_fields)
        texts = [each.get_secret_value() for each in values if isinstance(each, SecretStr)]
        return (*texts, *self.webhook_signature_keys)

    @property
    def webhook_signature_keys(self) -> tuple[str, ...]:
        """Those that are valid."""
        key = self.webhook_signature_key
        return () if key is None else tuple(key.get_secret_value().split())

    @cached_property
    def fingerprint(self) -> str:
        """Differs for different credentials, and reveals nothing about them."""
        text = json.dumps(self.reveal(), sort_keys=True)
        return hashlib.sha256(b"pos-gateway\0" + text.encode()).hexdigest()[:16]


class NoAuth(Credentials):
    """The POS needs no credentials."""

    type: Literal["none"] = "none"


class ApiKey(Credentials):
    """A key in a header."""

    type: Literal["api_key"]
    header: Annotated[_HeaderName, AfterValidator(_not_framing)] = "X-Api-Key"
    key: Secret


class Basic(Credentials):
    """User and password (RFC 7617)."""

    type: Literal["basic"]
    username: Annotated[str, StringConstraints(pattern=r"^[^:\x00-\x1f\x7f]*$", max_length=256)]
    password: Secret


def basic(user: str, password: str) -> str:
    """The value of an Authorization header (RFC 7617, in UTF-8)."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


class Bearer(Credentials):
    """A token that does not expire (RFC 6750)."""

    type: Literal["bearer"]
    token: Secret


class Signature(Credentials):
    """Every request is signed as in Standard Webhooks; the secret is ``whsec_…``."""

    type: Literal["hmac"]
    secret: Secret

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        whole = super().secrets
        return (*whole, *(each.removeprefix("whsec_") for each in whole))


class OAuth2(Credentials):
    """Client credentials (RFC 6749, 4.4): tokens are refreshed before they expire."""

    type: Literal["oauth2"]
    token_url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)]
    client_id: _Printable
    client_secret: Secret
    scope: Annotated[str, Field(max_length=1024)] | None = None
    audience: Annotated[str, Field(max_length=1024)] | None = None
    #: How the client authenticates: in the Authorization header, in the form, or, for some vendors,
    #: in a JSON object.
    style: Literal["basic", "form", "json"] = "basic"


class OAuth2Grant(Credentials):
    """A grant brought in by an operator: tokens of an authorization code (RFC 6749, 6).

    Refreshed ahead of the end. Later pairs are in the table ``grants``; the record keeps the first pair.
    """

    type: Literal["oauth2_grant"]
    token_url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)]
    client_id: _Printable
    client_secret: Secret | None = None
    refresh_token: Secret
    access_token: Secret | None = None
    #: When the tokens end, in Unix time; None: unknown.
    expires_at: _Moment | None = None
    refresh_expires_at: _Moment | None = None
    style: Literal["basic", "form", "json"] = "json"

    @cached_property
    def grant_id(self) -> str:
        """Differs for each grant, and stays when any field but the refresh token and the client's id is edited."""
        known = [self.client_id, _in_clear(self.refresh_token)]
        return hashlib.sha256(b"pos-gateway grant\0" + json.dumps(known).encode()).hexdigest()[:32]


class ToastLogin(Credentials):
    """Toast's login: client id and secret for a token that is usually valid for a day."""

    type: Literal["toast"]
    token_url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)]
    client_id: _Printable
    client_secret: Secret


class UnreadableCredentials(Credentials):
    """Credentials sealed with a key that this process does not have."""

    type: Literal["unreadable"] = "unreadable"
    problem: str = ""


_Kinds = NoAuth | ApiKey | Basic | Bearer | Signature | OAuth2 | OAuth2Grant | ToastLogin
_TYPES = [get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(_Kinds)]


def _given(value: Any) -> Any:
    if value == {}:
        return {"type": "none"}
    if isinstance(value, dict) and value.get("type") not in _TYPES:  # pydantic would show it
        raise ValueError(f"should have a type: {', '.join(_TYPES)}")
    return value


Auth = Annotated[
    Annotated[_Kinds, Field(discriminator="type")],
    BeforeValidator(_given),
]

NONE = NoAuth()


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_is_secret, get_args(annotation)))


def _fields_of(kind: type[Record]) -> dict[str, bool]:
    """The fields, and whether each is a secret."""
    return {name: _is_secret(each.annotation) for name, each in kind.model_fields.items()}


#: The fields of each type of ``auth``, and whether each is a secret; ``tls`` has fields of its own.
FIELDS: dict[str, dict[str, bool]] = {
    name: _fields_of(kind) for name, kind in zip(_TYPES, get_args(_Kinds), strict=True)
}
TLS_FIELDS = _fields_of(Identity)


def _in_clear(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: _in_clear(each) for name, each in value.items()}
    return value
