"""``pos-gateway db``: the database's schema."""

import click

from pos_gateway.cli.groups import Group


@click.group(cls=Group)
def db() -> None:
    """Administer the database (POS_GATEWAY_DATABASE_URL)."""


@db.command(short_help="Bring the schema to this version.")
def upgrade() -> None:
    """Create the tables, or migrate them to this version. Harmless when they are up to date.

    \b
    Example:
      POS_GATEWAY_DATABASE_URL=postgresql://gateway@db/gateway pos-gateway db upgrade
    """
    from pos_gateway.cli.database import database
    from pos_gateway.database import engine as schema
    from pos_gateway.domain.errors import PendingMigration
    from pos_gateway.runtime.urls import mask_url

    with database(current=False) as engine:
        shown = mask_url(engine.url.render_as_string(hide_password=False))
        try:
            schema.require_current(engine)
        except PendingMigration:
            schema.upgrade(engine)
            click.echo(f"{shown} is now up to date")
        else:
            click.echo(f"{shown} is up to date already")
