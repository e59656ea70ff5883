"""Alembic's entry: runs the migrations on the connection opened by ``engine.upgrade``."""

from alembic import context

from pos_gateway.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
