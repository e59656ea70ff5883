"""Alerts for what needs a person, and which server sends them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("condition", sa.String(32), primary_key=True),
        sa.Column("subject", sa.String(128), primary_key=True),
        sa.Column("incident", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("says", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("clear_since", sa.Double()),
        sa.Column("is_sent", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
    )
    claim = op.create_table(
        "alert_claim",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("owner", sa.String(32)),
        sa.Column("until", sa.Double(), nullable=False),
    )
    op.bulk_insert(claim, [{"id": 1, "owner": None, "until": 0.0}])


def downgrade() -> None:
    op.drop_table("alert_claim")
    op.drop_table("alerts")
