"""An index that finds recently edited merchants."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_index("ix_merchants_updated_at", "merchants", ["updated_at"])


def downgrade() -> None:
    op.drop_index("ix_merchants_updated_at", "merchants")
