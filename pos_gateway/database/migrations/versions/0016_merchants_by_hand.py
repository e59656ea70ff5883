"""The audit's reasons and changes, and which merchants were removed."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("audit", sa.Column("reason", sa.Text()))
    op.add_column("audit", sa.Column("changes", sa.Text()))
    op.create_index("audit_by_merchant", "audit", ["merchant_id", "id"], if_not_exists=True)
    op.create_index("audit_by_order", "audit", ["order_id", "id"], if_not_exists=True)
    op.create_table(
        "removed_merchants",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("removed_at", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("removed_merchants")
    op.drop_index("audit_by_order", "audit")
    op.drop_index("audit_by_merchant", "audit")
    op.drop_column("audit", "changes")
    op.drop_column("audit", "reason")
