"""Alembic's entry: runs the migrations on the connection opened by ``engine.upgrade``."""

from alembic import context

from pos_gateway.database.engine import migration_connection
from pos_gateway.database.schema import metadata

with migration_connection(context.config) as connection:
    context.configure(connection=connection, target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()
