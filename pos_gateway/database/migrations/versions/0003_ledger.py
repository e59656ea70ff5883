"""The ledger: orders, events, workers' leases and the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "orders",
        sa.Column("merchant_id", sa.String(128), primary_key=True),
        sa.Column("order_id", sa.String(128), primary_key=True),
        sa.Column("action", sa.String(16), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("ticket", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("deaths", sa.Integer, nullable=False),
        sa.Column("doubt_since", sa.Double),
        sa.Column("pending", sa.Boolean, nullable=False),
        sa.Column("told", sa.String(16)),  # words: ok
        sa.Column("reopened", sa.Integer, nullable=False),
        sa.Column("external_id", sa.String(256)),
        sa.Column("reason_code", sa.String(64)),
        sa.Column("reason_message", sa.Text),
        sa.Column("deliver_by", sa.Double),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("payload", sa.Text),
    )
    op.create_index("orders_by_state", "orders", ["state", "updated_at"])
    op.create_index("orders_by_order", "orders", ["order_id"])
    op.create_table(
        "events",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("event_id", sa.String(36), nullable=False, unique=True),
        sa.Column("position", sa.BigInteger, unique=True),
        sa.Column("type", sa.String(16), nullable=False),
        sa.Column("merchant_id", sa.String(128), nullable=False),
        sa.Column("order_id", sa.String(128), nullable=False),
        sa.Column("occurred_at", sa.Double, nullable=False),
        sa.Column("external_id", sa.String(256)),
        sa.Column("reason_code", sa.String(64)),
        sa.Column("reason_message", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("beat_at", sa.Double, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("operator", sa.String(128), nullable=False),
        sa.Column("what", sa.String(64), nullable=False),
        sa.Column("merchant_id", sa.String(128), nullable=False),
        sa.Column("order_id", sa.String(128), nullable=False),
        sa.Column("details", sa.String(512), nullable=False),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    for table in ("audit", "workers", "events", "orders"):
        op.drop_table(table)
