"""``POS_GATEWAY_*`` environment variables -> Settings. The only reader of the environment.

Every setting has its meaning and unit in its description; ``pos-gateway settings`` prints them.
Durations are float seconds unless they say otherwise, shares are fractions of 1.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, SecretStr, ValidationError

from pos_gateway.domain.errors import FieldError, InvalidSettings
from pos_gateway.domain.record import field_errors
from pos_gateway.domain.split import Percent
from pos_gateway.domain.user_name import user_names, user_names_or_everyone
from pos_gateway.runtime import failpoints as named_places
from pos_gateway.runtime.addresses import networks, ports
from pos_gateway.runtime.urls import MASK, mask_url, require_usable

PREFIX = "POS_GATEWAY_"
#: How Celery's own variables begin.
_CELERYS = ("CELERY", "BROKER_URL", "REMAP_")
#: What configures this process beside the command line: a gateway, Celery, its broker, gevent, PostgreSQL, traces.
_CONFIGURING = (PREFIX, *_CELERYS, "KOMBU", "GEVENT", "PG", "OTEL_")
#: Seconds.
DAY = 86_400.0
#: Settings that are shown masked, also when they are invalid.
_SECRETS = frozenset({"secret_key", "token", "alert_url", "alert_secret"})

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


def _url(*schemes: str) -> AfterValidator:
    def check(urls: str) -> str:
        for url in urls.split(";"):  # a cluster's nodes have one each
            if urlsplit(url).scheme.split("+")[0] not in schemes:
                raise ValueError(f"must start with {' or '.join(f'{s}://' for s in schemes)}")
            if "sqlite" not in schemes:  # SQLAlchemy reads its URLs otherwise
                require_usable(url)
        return urls

    return AfterValidator(check)


def _web_url(url: SecretStr) -> SecretStr:
    if urlsplit(url.get_secret_value()).scheme not in ("http", "https"):
        raise ValueError("must start with http:// or https://")
    require_usable(url.get_secret_value())
    if not urlsplit(url.get_secret_value()).hostname:
        raise ValueError("has no host")
    return url


def _listing(parse: Callable[[str], Any]) -> AfterValidator:
    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


#: Headers that browsers send by themselves, or that have another meaning here.
_OTHERS = frozenset(
    {
        "accept",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "forwarded",
        "host",
    }
    | {"origin", "referer", "transfer-encoding", "user-agent", "x-real-ip"}
    | {"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"}
)
_HEADER = re.compile("[A-Za-z0-9][A-Za-z0-9-]{0,63}")


def _header(name: str) -> str:
    if name and (_HEADER.fullmatch(name) is None or name.lower() in _OTHERS):
        raise ValueError(
            "should be the name of a header that the proxy alone sets: X-Auth-Request-Email, Remote-User"
        )
    return name


def _proxies(text: str) -> str:
    if any(each.prefixlen == 0 for each in networks(text)):
        raise ValueError("has a network of all addresses: anyone could be any user")
    return text


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError("should be an IP address, 127.0.0.1 or 0.0.0.0") from None


def _none_or_a_day(days: float) -> float:
    if 0 < days < 1:
        raise ValueError(
            "should be 0 or at least 1: a message that comes again must find its order"
        )
    return days


def _can_trace(wanted: bool) -> bool:
    if wanted and not _is_installed("opentelemetry.exporter.otlp.proto.http"):
        raise ValueError("needs OpenTelemetry: pip install 'pos-gateway[tracing]'")
    return wanted


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even its parent is installed
        return False


class Settings(BaseModel):
    """This process's settings. Immutable; made once, at start."""

    model_config = {"frozen": True, "extra": "forbid"}

    broker_url: Annotated[str, _url("amqp", "amqps", "memory")] = Field(
        "amqp://guest:guest@localhost:5672//",
        description="Where RabbitMQ is; the nodes of a cluster with `;` between them. With `amqps://` its"
        " certificate has to be the URL's host's.",
    )
    database_url: Annotated[str, _url("sqlite", "postgresql", "postgres")] = Field(
        "sqlite:///pos_gateway.db",
        description="Where merchants are kept: SQLite, or PostgreSQL in production.",
    )
    redis_url: Annotated[str, _url("redis", "rediss", "unix")] | None = Field(
        None,
        description="Where workers share merchants' limits and breakers, and with "
        "`POS_GATEWAY_SECRET_KEY` records, catalogs and tokens; unset: each for itself.",
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        9808, description="Port of the metrics, `/healthz` and `/readyz`; 0 is off."
    )
    metrics_host: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1",
        description="IP address at which that port is open; `0.0.0.0` is every one of this machine "
        "(`::` with IPv6). It has no authentication.",
    )
    slots: Annotated[int, Field(ge=1, le=10_000)] = Field(
        200, description="Orders in flight at once in this process (green threads)."
    )
    merchant_concurrency: Annotated[int, Field(ge=1, le=10_000)] = Field(
        10, description="Orders in flight at once for a merchant that states no limit."
    )
    max_waiting: Annotated[int, Field(ge=1, le=100_000)] = Field(
        20,
        description="Orders of one merchant that may wait here in any case if they lack a slot only,"
        " and at most while it does not answer; more are parked in the broker. Five for each slot at most.",
    )
    local_wait_timeout: Seconds = Field(
        5.0,
        description="Seconds an order waits here at most for a merchant that does not answer, before"
        " it is parked in the broker.",
    )
    park_delay_max: Seconds = Field(
        30.0,
        description="Seconds an order stays parked at most: how late a recovery may be noticed.",
    )
    slow_after: Seconds = Field(
        3.0,
        description="Seconds: a call that is out is late no sooner than this, and makes a merchant"
        " that has never answered silent no sooner.",
    )
    request_timeout: Seconds = Field(
        10.0, description="Seconds for one exchange with a POS, from connecting to the last byte."
    )
    canary_percent: Percent = Field(
        0.0,
        description="Percent of merchants whose orders go to orders.canary, until an operator sets it with"
        " `pos-gateway canary set` (OrderClient).",
    )
    allow_private_addresses: bool = Field(
        False, description="Let merchants be on private addresses: for development and tests only."
    )
    allowed_networks: Annotated[str, _listing(networks)] = Field(
        "",
        description="Networks beside the internet that POSes may be in: 10.1.0.0/16, fd00:1::/32",
    )
    allowed_ports: Annotated[str, _listing(ports)] = Field(
        "443, 8443", description="Ports that POSes may have."
    )
    ca_file: str | None = Field(
        None, description="PEM file of certificate authorities to trust instead of the system's."
    )
    secret_key: SecretStr | None = Field(
        None,
        description="Keys that merchants' secrets and orders are sealed with, the present one first. "
        "`pos-gateway secrets key` makes one.",
    )
    max_order_bytes: Annotated[int, Field(ge=1024, le=16 * 2**20)] = Field(
        256 * 1024, description="Largest order message in bytes; larger ones go to orders.dead."
    )
    poll_every: Annotated[float, Field(ge=15, le=3600, allow_inf_nan=False)] = Field(
        60.0,
        description="Seconds between two polls of a merchant whose `pos.poll` is `ON`: its POS is asked what has"
        " become of accepted orders. The same in all workers.",
    )
    publish_events: bool = Field(
        True,
        description="Workers publish status events; false: `pos-gateway events run` does elsewhere.",
    )
    events_to_broker: bool = Field(
        True,
        description="Publish status events to the exchange order-events; false: backends read them over"
        " HTTP only, and the queue order-events stays empty. The same in all workers.",
    )
    keep_events: Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)] = Field(
        30.0,
        description="Days that published events are kept for a replay; 0: until "
        "`pos-gateway events prune`.",
    )
    keep_orders: Annotated[
        float, Field(ge=0, le=36_500, allow_inf_nan=False), AfterValidator(_none_or_a_day)
    ] = Field(
        30.0,
        description="Days that orders are kept after they ended, at least 1; 0: until `pos-gateway orders"
        " prune`. How they ended is kept for 30 days more.",
    )
    log_buffer: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        8192,
        description="Log lines kept while the stream takes none; then the oldest of the least severe"
        " are dropped.",
    )
    tracing: Annotated[bool, AfterValidator(_can_trace)] = Field(
        False,
        description="Send OpenTelemetry traces of orders, to OTEL_EXPORTER_OTLP_ENDPOINT. Needs the "
        "extra `tracing`.",
    )
    http_url: Annotated[str, _url("http", "https")] | None = Field(
        None, description="Where the HTTP server is (HttpOrderClient, doctor)."
    )
    http_public_url: Annotated[str, _url("http", "https")] | None = Field(
        None,
        description="Where POSes reach the HTTP server: some sign the URL that they call. Unset:"
        " `https://` and the request's `Host`.",
    )
    token: SecretStr | None = Field(
        None, description="The token to show it (HttpOrderClient, doctor)."
    )
    http_in_flight: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1000, description="Requests that the HTTP server takes at once; more get a 429."
    )
    http_connections: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        4096, description="Connections to the HTTP server at once, streams of events included."
    )
    http_rate: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = Field(
        0.0,
        description="Requests a second of a token that has no rate of its own, in each HTTP server; an"
        " order of a batch counts as one. 0: no limit.",
    )
    trusted_proxies: Annotated[str, _listing(networks)] = Field(
        "",
        description="Addresses and networks of the proxies in front of the HTTP server, whose"
        " `X-Forwarded-For` and `X-Forwarded-Proto` say who the client is: 10.1.2.3, 10.4.0.0/16",
    )
    page_user_header: Annotated[str, AfterValidator(_header)] = Field(
        "",
        description="Header in which a proxy that logs people in (SSO) names the user of the operations page:"
        " X-Auth-Request-Email. Empty: access tokens alone log in.",
    )
    page_proxies: Annotated[str, AfterValidator(_proxies)] = Field(
        "",
        description="Addresses and networks of the proxies whose `POS_GATEWAY_PAGE_USER_HEADER` is believed;"
        " from any other peer it is refused. `POS_GATEWAY_TRUSTED_PROXIES` has no part in it.",
    )
    page_operators: Annotated[str, _listing(user_names)] = Field(
        "",
        description="Users of that header who are operators of the page: kim@example.com, sam@example.com",
    )
    page_viewers: Annotated[str, _listing(user_names_or_everyone)] = Field(
        "",
        description="Users of that header who are viewers of the page; `*`: all whom the proxy names.",
    )
    alert_url: Annotated[SecretStr, AfterValidator(_web_url)] | None = Field(
        None,
        description="Where `pos-gateway serve` sends alerts for what needs a person (docs/alerts.md); shown"
        " masked, since some receivers' URLs are secrets. Unset: no alerts.",
    )
    alert_secret: SecretStr | None = Field(
        None,
        description="What signs them: 24 to 64 bytes in base64, with `whsec_` before it or not.",
    )
    alert_secret_file: Path | None = Field(
        None,
        description="A file with that secret, for servers whose environment should not have it.",
    )
    outbox_url: (
        Annotated[str, _url("sqlite", "postgresql", "postgres", "mysql", "mariadb")] | None
    ) = Field(
        None,
        description="The backend's database, with its outbox (`pos-gateway outbox`); not the gateway's.",
    )
    remote_control: bool = Field(
        False, description="Let `celery inspect` and `celery control` reach this worker."
    )

    failpoints: Annotated[str, AfterValidator(named_places.check)] = Field(
        "", description="For tests: where to die or stand still, outcome.before=kill:3"
    )

    @property
    def secret_keys(self) -> str | None:
        """The keys in plain text."""
        return self.secret_key.get_secret_value() if self.secret_key else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the process's environment (or the mapping given).

        Raises:
            InvalidSettings: names every variable that is wrong or unknown, with what would do.
        """
        given = _given(os.environ if environment is None else environment)
        errors = _unknown(given, cls)
        try:
            known = {name: value for name, value in given.items() if name in cls.model_fields}
            settings = cls.model_validate(known)
        except ValidationError as error:
            errors += [
                FieldError(PREFIX + e.field.upper(), e.problem, _shown(e.field, e.value))
                for e in field_errors(error)
            ]
        if errors:
            raise InvalidSettings(errors)
        return settings


def setting(name: str, given: Any = None) -> Any:
    """One setting: the value given, else the environment's, else the default; checked.

    For the order backend's client, which must not fail on the worker's settings.
    """
    field = Settings.model_fields[name]
    value = given if given is not None else _given(os.environ).get(name, field.default)
    try:
        return getattr(Settings.model_validate({name: value}), name)
    except ValidationError as error:
        problem = field_errors(error)[0].problem
        shown = _shown(name, value)
        raise InvalidSettings([FieldError(PREFIX + name.upper(), problem, shown)]) from None


def is_set(name: str) -> bool:
    """Whether the environment has a value for it."""
    return name in _given(os.environ)


def celerys() -> dict[str, str]:
    """Celery's own variables of this process: what contradicts a setting in them is refused."""
    return {name: value for name, value in os.environ.items() if name.startswith(_CELERYS)}


def forget_environment() -> None:
    """Remove all that configures a gateway from this process's environment, and so from its children's.

    For demos, load tests and tests: none of them may act on a broker or a database that the
    environment names for real orders.
    """
    for name in [name for name in os.environ if name.startswith(_CONFIGURING)]:
        del os.environ[name]


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of ``pos-gateway settings``."""

    variable: str
    meaning: str
    default: str
    value: str
    problem: str | None = None


def explain(environment: Mapping[str, str] | None = None) -> list[Setting]:
    """Every setting with its present value, secrets masked, also when some are invalid."""
    given = _given(os.environ if environment is None else environment)
    lines = []
    for name, field in Settings.model_fields.items():
        problem = None
        value: Any = given.get(name, field.default)
        try:
            value = getattr(Settings.model_validate({name: value}), name)
        except ValidationError as error:
            problem = field_errors(error)[0].problem
        lines.append(
            Setting(
                variable=PREFIX + name.upper(),
                meaning=field.description or "",
                default=_shown(name, field.default),
                value=_shown(name, value),
                problem=problem,
            )
        )
    lines += [
        Setting(error.field, "", "", MASK, error.problem) for error in _unknown(given, Settings)
    ]
    return lines


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    # An empty variable counts as unset: that is what an empty line in a ConfigMap means.
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value != ""
    }


def _unknown(given: Mapping[str, str], settings: type[Settings]) -> list[FieldError]:
    errors = []
    for name in sorted(given.keys() - settings.model_fields.keys()):
        near = difflib.get_close_matches(name, settings.model_fields, n=1, cutoff=0.5)
        advice = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
        # Its value is not shown: it may be a secret whose variable was mistyped.
        errors.append(FieldError(PREFIX + name.upper(), f"is not a setting{advice}"))
    return errors


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "(unset)"
    if isinstance(value, SecretStr) or name in _SECRETS:
        return MASK
    if name.endswith("_url") and value != Settings.model_fields[name].default:
        return mask_url(str(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
