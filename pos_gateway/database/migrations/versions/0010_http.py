"""What the HTTP server keeps: tokens, submitted orders, and each order's attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("rate", sa.Integer()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
    )
    op.create_table(
        "submissions",
        sa.Column("merchant_id", sa.String(128), primary_key=True),
        sa.Column("order_id", sa.String(128), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False, index=True),
    )
    op.add_column("orders", sa.Column("attempt_history", sa.Text()))


def downgrade() -> None:
    op.drop_column("orders", "attempt_history")
    op.drop_table("submissions")
    op.drop_table("tokens")
