"""Polls of merchants' POSes, and an index of open orders."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

_IS_OPEN = sa.text(
    "action = 'submit' and state = 'accepted' and external_id is not null"
    " and (lifecycle is null or lifecycle = 'preparing' or lifecycle = 'ready')"
)


def upgrade() -> None:
    op.create_table(
        "pos_polls",
        sa.Column("merchant_id", sa.String(128), primary_key=True),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("since", sa.Double()),
        sa.Column("failures", sa.Integer(), nullable=False),
    )
    op.create_index(
        "orders_open",
        "orders",
        ["merchant_id", "updated_at"],
        if_not_exists=True,  # operators make it beforehand: building it locks a large table
        sqlite_where=_IS_OPEN,
        postgresql_where=_IS_OPEN,
    )


def downgrade() -> None:
    op.drop_index("orders_open", "orders")
    op.drop_table("pos_polls")
