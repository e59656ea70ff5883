"""POSes' callbacks: which came, how far accepted orders are, and orders by the POS's id."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_IS_WAITING = sa.text("again_at is not null")
_WITH_ID = sa.text("external_id is not null")


def upgrade() -> None:
    op.create_table(
        "callbacks",
        sa.Column("adapter", sa.String(64), primary_key=True),
        sa.Column("merchant_id", sa.String(128), primary_key=True),
        sa.Column("event_id", sa.String(128), primary_key=True),
        sa.Column("received_at", sa.Double(), nullable=False, index=True),
        sa.Column("result", sa.String(16), nullable=False),
        sa.Column("waiting", sa.Text()),
        sa.Column("shop", sa.String(256)),
        sa.Column("external_id", sa.String(256)),
        sa.Column("again_at", sa.Double()),
    )
    op.create_index(
        "callbacks_waiting",
        "callbacks",
        ["shop", "again_at"],
        sqlite_where=_IS_WAITING,
        postgresql_where=_IS_WAITING,
    )
    lifecycle = sa.Column("lifecycle", sa.String(16))
    # On PostgreSQL operators may have added the column for the index of 0022; SQLite has no such clause.
    op.add_column("orders", lifecycle, if_not_exists=op.get_bind().dialect.name == "postgresql")
    op.create_index(
        "orders_by_external_id",
        "orders",
        ["external_id", "merchant_id"],
        if_not_exists=True,  # operators make it beforehand: building it locks a large table
        sqlite_where=_WITH_ID,
        postgresql_where=_WITH_ID,
    )


def downgrade() -> None:
    op.drop_index("orders_by_external_id", "orders")
    op.drop_column("orders", "lifecycle")
    op.drop_table("callbacks")
