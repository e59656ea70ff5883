"""Merchants' catalogs: their POSes' item ids by our SKUs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "catalogs",
        sa.Column("merchant_id", sa.String(128), primary_key=True),
        sa.Column("entries", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    op.create_index("ix_catalogs_updated_at", "catalogs", ["updated_at"])


def downgrade() -> None:
    op.drop_table("catalogs")
