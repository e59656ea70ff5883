"""``pos-gateway db``: the database's schema."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "upgrade": Lazy("pos_gateway.cli.db:upgrade", "Bring the schema to this version."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def db() -> None:
    """Administer the database (POS_GATEWAY_DATABASE_URL)."""


@click.command()
def upgrade() -> None:
    """Create the tables, or migrate them to this version. Harmless when they are up to date.

    \b
    Example:
      POS_GATEWAY_DATABASE_URL=postgresql://gateway@db/gateway pos-gateway db upgrade
    """
    from pos_gateway.cli.database import database
    from pos_gateway.database.engine import require_current
    from pos_gateway.database.engine import upgrade as upgrade_schema
    from pos_gateway.domain.errors import PendingMigration
    from pos_gateway.runtime.urls import mask_url

    with database(current=False) as engine:
        shown = mask_url(engine.url.render_as_string(hide_password=False))
        try:
            require_current(engine)
        except PendingMigration:
            upgrade_schema(engine)
            click.echo(f"{shown} is now up to date")
        else:
            click.echo(f"{shown} is up to date already")
