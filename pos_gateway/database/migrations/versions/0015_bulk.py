"""Bulk runs: what operators do to many dead letters or orders in doubt, and to which of them."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_IS_AT_WORK = sa.text("state = 'running'")


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "bulk_runs",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("operator", sa.String(128), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(32), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("refused", sa.Integer(), nullable=False),
        sa.Column("gone", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(64)),
        sa.Column("lease_until", sa.Double()),
        sa.Column("stopped_by", sa.String(128)),
        sa.Column("problem", sa.String(512)),
        sa.Column("created_at", sa.Double(), nullable=False, index=True),
        sa.Column("started_at", sa.Double()),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "bulk_runs_at_work",
        "bulk_runs",
        ["subject"],
        unique=True,
        sqlite_where=_IS_AT_WORK,
        postgresql_where=_IS_AT_WORK,
    )
    op.create_table(
        "bulk_items",
        sa.Column("run", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("mark", sa.String(64), nullable=False),
        sa.Column("letter", sa.String(160), nullable=False),
        sa.Column("merchant_id", sa.String(128)),
        sa.Column("order_id", sa.String(128)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("why", sa.String(512)),
        sa.Column("kind", sa.String(256)),
    )


def downgrade() -> None:
    op.drop_table("bulk_items")
    op.drop_table("bulk_runs")
