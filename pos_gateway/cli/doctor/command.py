"""``pos-gateway doctor``: runs every check, one line for each finding."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from pos_gateway.cli.doctor.broker import check_broker
from pos_gateway.cli.doctor.configuration import check_addresses, check_settings
from pos_gateway.cli.doctor.database import check_database
from pos_gateway.cli.doctor.finding import Check, Finding, Level, fail, show
from pos_gateway.cli.doctor.patching import check_patching
from pos_gateway.cli.doctor.process import check_files, check_metrics_port
from pos_gateway.cli.doctor.redis import check_redis
from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.settings import Settings, setting

#: Each check with the settings that it requires; None: all of them.
CHECKS: tuple[tuple[Check, tuple[str, ...] | None], ...] = (
    (check_settings, ()),
    (check_addresses, ("broker_url", "allow_private_addresses")),
    (check_broker, ("broker_url",)),
    (check_database, ("database_url",)),
    (check_redis, ("redis_url",)),
    (check_files, ("slots",)),
    (check_metrics_port, ("metrics_host", "metrics_port")),
    (check_patching, None),
)


@click.command()
def doctor() -> None:
    """Check the settings, the broker, the database and this machine.

    A line for each finding: ok, warn or fail; what; and the remedy. Nothing is changed.

    \b
    Example:
      pos-gateway doctor

    Exit code: 0, or 1 if something keeps orders from being delivered.
    """
    failed = False
    for finding in _findings():
        failed = failed or finding.level is Level.FAIL
        show(finding)
    if failed:
        raise click.exceptions.Exit(1)


def _findings() -> Iterator[Finding]:
    settings, valid = _usable()
    for check, needed in CHECKS:
        if not valid.issuperset(Settings.model_fields if needed is None else needed):
            continue  # check_settings reports it
        try:
            yield from check(settings)
        except Exception as error:  # noqa: BLE001  (a crash of a check is a finding)
            name = check.__name__.removeprefix("check_")
            yield fail(f"{name}: {type(error).__name__}: {error}", "this is a mistake in doctor")


def _usable() -> tuple[Settings, set[str]]:
    """The settings with defaults in place of invalid ones, and the names of the valid ones."""
    values: dict[str, Any] = {}
    for name in Settings.model_fields:
        with suppress(InvalidSettings):
            values[name] = setting(name)
    return Settings.model_validate(values), set(values)
