"""The settings, and combinations of them that are unsafe."""

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from pos_gateway.cli.doctor.finding import Finding, fail, ok, warn
from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.settings import Settings, explain


def check_settings(_: Settings) -> Iterator[Finding]:
    """Every environment variable is a setting, and every value is valid."""
    wrong = [line for line in explain() if line.problem]
    for line in wrong:
        yield fail(f"settings: {line.variable}={line.value} {line.problem}", "pos-gateway settings")
    if wrong:
        return
    try:
        Settings.from_environment()
    except InvalidSettings as error:
        for each in error.errors:
            yield fail(f"settings: {each}", "pos-gateway settings")
    else:
        yield ok("settings: all valid")


def check_addresses(settings: Settings) -> Iterator[Finding]:
    """Private merchant addresses are for development, with a local broker."""
    if not settings.allow_private_addresses:
        return
    hosts = [urlsplit(url).hostname or "localhost" for url in settings.broker_url.split(";")]
    away = [host for host in hosts if not _is_here(host)]
    if away:
        yield warn(
            f"private addresses are allowed, and the broker is at {away[0]}: a merchant's record "
            "can make a worker call hosts of your own network",
            "unset POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES in production",
        )


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
